package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pinniped-toolkit/pinniped/internal/concierge"
	"github.com/pinniped-toolkit/pinniped/internal/controller/credentialissuer"
	"github.com/pinniped-toolkit/pinniped/internal/impersonator"
	"github.com/pinniped-toolkit/pinniped/internal/namedwatch"
	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Options is what `pinniped-agent concierge` is told about its surroundings. What it does is in Config.
type Options struct {
	ConfigFile  string
	Kubeconfig  string // empty: the pod's service account
	Namespace   string // empty: the pod's
	PodName     string // empty: the host's name
	BindAddress string // empty: all addresses
	LogOutput   io.Writer
}

// Run runs the agent until ctx ends; then it finishes what it is doing and returns nil.
func Run(ctx context.Context, options Options, config *Config) error {
	logger, err := setUpLogging(config.Log, options.LogOutput)
	if err != nil {
		return err
	}
	ctx = logr.NewContext(ctx, logger)
	restConfig, err := clientConfig(options.Kubeconfig)
	if err != nil {
		return err
	}
	options.Namespace = namespaceOr(options.Namespace, DefaultNamespace)
	if options.PodName == "" {
		if options.PodName, err = os.Hostname(); err != nil {
			return fmt.Errorf("finding a name for this replica: %w", err)
		}
		options.PodName += "-" + strconv.Itoa(os.Getpid()) // several may run beside a cluster on one machine
	}
	a := &agent{options: options, config: config, rest: restConfig, groups: apis.GroupsFor(config.APIGroupSuffix)}
	logger.Info("Started the agent", "version", Version(), "namespace", options.Namespace, "replica", options.PodName, "apiServer", restConfig.Host)
	return a.run(ctx)
}

type agent struct {
	options Options
	config  *Config
	rest    *rest.Config
	groups  apis.Groups

	scheme *runtime.Scheme
	wakers wakers
}

// run wires everything together. Only what every replica needs to serve can end the process; what the leader does is tried again.
func (a *agent) run(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a.address(a.config.AggregatedAPIServerPort))
	if err != nil {
		return fmt.Errorf("listening for the Concierge APIs: %w", err)
	}
	defer func() { _ = listener.Close() }()

	a.scheme = runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(a.scheme))
	apis.AddToScheme(a.scheme, a.config.APIGroupSuffix)
	if err := a.waitForAPI(ctx); err != nil {
		return err
	}

	leader, err := newLeadership(a.rest, a.options.Namespace, a.config.Names.LeaderElectionLease, a.options.PodName, a.wakers.wakeAll)
	if err != nil {
		return err
	}
	token, err := impersonator.NewServiceAccountToken(a.rest, a.options.Namespace, a.config.Names.ImpersonationProxyServiceAccount, nil)
	if err != nil {
		return err
	}
	manager, err := a.newManager()
	if err != nil {
		return err
	}

	group, ctx := errgroup.WithContext(ctx)
	holder, clientCertificates := &servingcert.Holder{}, &signer.Signer{}
	proxy := &proxyRunner{
		life:    ctx,
		address: a.address(a.config.ImpersonationProxyServerPort),
		options: impersonator.Options{
			ServingCertificate: holder.GetCertificate,
			SignerCABundle:     signerBundle(clientCertificates),
			Agent:              a.rest,
			Upstream:           rest.AnonymousClientConfig(a.rest),
			Token:              token,
			GroupSuffix:        a.config.APIGroupSuffix,
			DrainDelay:         a.config.shutdownDelay(),
		},
	}
	issuer, err := a.newIssuerReconciler(ctx, manager, holder, clientCertificates, proxy, leader.Leading)
	if err != nil {
		return err
	}

	group.Go(func() error { token.Run(ctx); return nil })
	group.Go(func() error { leader.run(ctx); return nil })
	group.Go(func() error {
		if err := manager.Start(ctx); err != nil {
			return fmt.Errorf("running the controllers: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		server, err := a.newConcierge(ctx, listener, clientCertificates, issuer.Ready)
		if err != nil {
			return err
		}
		return server.Run(ctx)
	})
	err = group.Wait()
	proxy.Wait()
	logr.FromContextOrDiscard(ctx).Info("Stopped the agent")
	return err
}

func (a *agent) address(port int32) string {
	return net.JoinHostPort(a.options.BindAddress, strconv.Itoa(int(port)))
}

// waitForAPI waits until the API server answers and knows the API groups, so that the agent may be started before both.
func (a *agent) waitForAPI(ctx context.Context) error {
	logger := logr.FromContextOrDiscard(ctx)
	live, err := client.New(a.rest, client.Options{Scheme: a.scheme})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	told := ""
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		err := live.List(ctx, &configv1alpha1.CredentialIssuerList{}, client.Limit(1))
		if err == nil {
			return true, nil
		}
		if text := err.Error(); text != told && ctx.Err() == nil {
			told = text
			logger.Info("Waited for the API server to serve CredentialIssuers", "problem", text)
		}
		return false, nil
	})
}

// newManager makes a manager that reads no more than it must: one CredentialIssuer, and the authenticators.
func (a *agent) newManager() (ctrl.Manager, error) {
	manager, err := ctrl.NewManager(a.rest, ctrl.Options{
		Scheme:                 a.scheme,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&configv1alpha1.CredentialIssuer{}: {
					Field: fields.OneTermEqualSelector("metadata.name", a.config.Names.CredentialIssuer),
				},
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("making the controller manager: %w", err)
	}
	return manager, nil
}

func (a *agent) newIssuerReconciler(
	ctx context.Context, manager ctrl.Manager, holder *servingcert.Holder, clientCertificates *signer.Signer, proxy *proxyRunner, isLeader func() bool,
) (*credentialissuer.Reconciler, error) {
	core, err := corev1client.NewForConfig(a.rest)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	wake, woken := a.wakers.add()
	named := func(types.NamespacedName) { wake() }
	names := a.config.Names
	reconciler := &credentialissuer.Reconciler{
		Client:   manager.GetClient(),
		Live:     manager.GetAPIReader(),
		Secrets:  namedwatch.New(ctx, core.RESTClient(), "secrets", &corev1.Secret{}, named),
		Services: namedwatch.New(ctx, core.RESTClient(), "services", &corev1.Service{}, named),
		Holder:   holder, Signer: clientCertificates, Proxy: proxy,
		IsLeader: isLeader, Wake: woken,
		Names: credentialissuer.Names{
			CredentialIssuer:    names.CredentialIssuer,
			LoadBalancerService: names.ImpersonationLoadBalancerService,
			ClusterIPService:    names.ImpersonationClusterIPService,
			TLSSecret:           names.ImpersonationTLSCertificateSecret,
			CASecret:            names.ImpersonationCACertificateSecret,
			SignerSecret:        names.ImpersonationSignerSecret,
		},
		Namespace: a.options.Namespace,
		Labels:    a.config.Labels,
		AppLabel:  a.config.AppLabel(),
		ProxyPort: a.config.ImpersonationProxyServerPort,
		Clock:     clock.RealClock{},
	}
	if err := reconciler.SetupWithManager(manager); err != nil {
		return nil, fmt.Errorf("setting up the CredentialIssuer controller: %w", err)
	}
	return reconciler, nil
}

// newConcierge makes the server of the aggregated APIs, and tries again while the API server is away.
func (a *agent) newConcierge(ctx context.Context, listener net.Listener, clientCertificates *signer.Signer, ready func() error) (*concierge.Server, error) {
	logger := logr.FromContextOrDiscard(ctx)
	for {
		server, err := concierge.New(ctx, concierge.Options{
			Listener:                   listener,
			Agent:                      a.rest,
			GroupSuffix:                a.config.APIGroupSuffix,
			DisableAdmissionPlugins:    a.config.AggregatedAPIServerDisableAdmissionPlugins,
			Issuer:                     clientCertificates,
			Ready:                      ready,
			ShutdownDelay:              a.config.shutdownDelay(),
			AuditLogUsernamesAndGroups: a.config.Audit.LogUsernamesAndGroups == "enabled",
		})
		if err == nil {
			return server, nil
		}
		logger.Info("Could not start the Concierge APIs yet", "problem", err.Error())
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(time.Second):
		}
	}
}

// signerBundle gives the proxy the signer's bundle. The pointer changes when, and only when, the bundle does.
func signerBundle(from *signer.Signer) func() *impersonator.CABundle {
	type known struct {
		generation *signer.Generation
		bundle     *impersonator.CABundle
	}
	var last atomic.Pointer[known]
	return func() *impersonator.CABundle {
		generation := from.Current()
		if generation == nil {
			return nil
		}
		if seen := last.Load(); seen != nil && seen.generation == generation {
			return seen.bundle
		}
		seen := &known{generation, &impersonator.CABundle{PEM: generation.Bundle()}}
		last.Store(seen)
		return seen.bundle
	}
}

// wakers wake the controllers when something outside the manager's cache changed.
type wakers struct{ list []chan event.GenericEvent }

// add returns a function that wakes, without ever blocking, and the channel in which it is seen. Before the controller is awake, one
// event stands for all.
func (w *wakers) add() (wake func(), woken <-chan event.GenericEvent) {
	channel := make(chan event.GenericEvent, 1)
	w.list = append(w.list, channel)
	return func() { notify(channel) }, channel
}

func (w *wakers) wakeAll() {
	for _, channel := range w.list {
		notify(channel)
	}
}

func notify(channel chan event.GenericEvent) {
	select {
	case channel <- event.GenericEvent{Object: &configv1alpha1.CredentialIssuer{}}:
	default:
	}
}
