// Package agent is the composition root of pinniped-agent: it reads the configuration, wires the impersonation proxy,
// the aggregated Concierge APIs and the controllers together, and runs them until its context ends.
package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	goruntime "runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/concierge"
	"github.com/pinniped-toolkit/pinniped/internal/controller/apiservice"
	"github.com/pinniped-toolkit/pinniped/internal/controller/credentialissuer"
	"github.com/pinniped-toolkit/pinniped/internal/logininfo"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/memory"
	"github.com/pinniped-toolkit/pinniped/internal/proxy"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
	"github.com/pinniped-toolkit/pinniped/internal/replicas"
	"github.com/pinniped-toolkit/pinniped/internal/satoken"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Options is the environment of `pinniped-agent concierge`; Config is its configuration.
type Options struct {
	ConfigFile  string
	Kubeconfig  string // default: the pod's service account
	Namespace   string // default: the pod's namespace
	PodName     string // default: the host name
	BindAddress string // default: all addresses
	Version     string
	LogOutput   io.Writer
	AuditOutput io.Writer // for an audit log with path "-"
}

// Run runs the agent until ctx ends. It then finishes pending requests and returns nil.
func Run(ctx context.Context, options Options, config *Config) error {
	logger, err := setUpLogging(config.Log, options.LogOutput)
	if err != nil {
		return err
	}
	ctx = logr.NewContext(ctx, logger)
	auditLog, closeAuditLog, err := config.Audit.open(options.AuditOutput)
	if err != nil {
		return err
	}
	defer closeAuditLog()
	restConfig, err := clientConfig(options.Kubeconfig, options.Version)
	if err != nil {
		return err
	}
	options.Namespace = namespaceOr(options.Namespace, DefaultNamespace)
	if options.PodName == "" {
		if options.PodName, err = os.Hostname(); err != nil {
			return fmt.Errorf("finding a name for this replica: %w", err)
		}
		options.PodName += "-" + strconv.Itoa(os.Getpid()) // several replicas may run on one machine outside a cluster
	}
	a := &agent{
		options: options, config: config, rest: restConfig, groups: apis.GroupsFor(config.APIGroupSuffix),
		scheme:         runtime.NewScheme(),
		holder:         &serving.Holder{},
		signer:         &signer.Signer{},
		apiCertificate: &apiservice.Certificate{},
		memory:         podMemory(),
		processors:     goruntime.GOMAXPROCS(0),
		audit:          auditLog,
	}
	a.apiPort = listener.New(flowcontrol.New(flowcontrol.APILimitsFor(a.memory, a.processors)))
	a.logins = concierge.NewLoginLimits(a.apiPort.FlowControl())
	a.authenticators = authenticator.NewCache(a.groups.Authentication.Group)
	a.bearer = authenticator.NewBearer(a.authenticators, clock.RealClock{})
	utilruntime.Must(corev1.AddToScheme(a.scheme))
	apis.AddToScheme(a.scheme, config.APIGroupSuffix)
	logger.Info("Started the agent", "version", options.Version, "namespace", options.Namespace,
		"replica", options.PodName, "apiServer", restConfig.Host)
	return a.run(ctx)
}

// agent is the shared state: controllers update it, servers read it.
type agent struct {
	options Options
	config  *Config
	rest    *rest.Config
	kube    kubernetes.Interface
	groups  apis.Groups
	scheme  *runtime.Scheme

	memory     int64 // limit of the pod, in bytes
	processors int

	leader   *leadership
	triggers triggers

	proxy      *proxyRunner
	credential *selfCheck // of the proxy's upstream credential

	replicas *replicas.Registry   // the state that the replicas publish
	events   record.EventRecorder // about the CredentialIssuer
	issuer   atomic.Pointer[credentialissuer.Reconciler]

	holder         *serving.Holder                        // the certificate that the proxy serves
	bundle         publishedBundle                        // the CA bundle that verifies the proxy
	loginOffer     *loginOffer                            // creates offer
	offer          atomic.Pointer[logininfo.Offer]        // how users log in
	usage          atomic.Pointer[credentialissuer.Usage] // that clients use the proxy
	signer         *signer.Signer                         // of client certificates
	clusterSigner  *signer.Cluster                        // the cluster's own signer; nil if not enabled
	signersReport  atomic.Pointer[string]                 // the reports of the other replicas
	following      sync.Once                              // starts followClusterInfo once
	userTokens     *satoken.Backend                       // tokens of users' service accounts
	authenticators *authenticator.Cache                   // for TokenCredentialRequests
	bearer         *authenticator.Bearer                  // bearer tokens at the proxy
	apiCertificate *apiservice.Certificate                // the serving certificate of the aggregated APIs
	logins         *concierge.LoginLimits                 // limits at the aggregated APIs
	apiPort        *listener.Port                         // the port of the aggregated APIs
	audit          *proxy.AuditLog                        // of requests to the proxy; nil for none
}

// run wires the parts together. Only an error of a part that every replica needs to serve ends the process; the
// leader's work is retried.
func (a *agent) run(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a.address(a.config.AggregatedAPIServerPort))
	if err != nil {
		return fmt.Errorf("listening for the Concierge APIs: %w", err)
	}
	defer func() { _ = listener.Close() }()
	if a.kube, err = kubernetes.NewForConfig(a.rest); err != nil {
		return fmt.Errorf("creating a client: %w", err)
	}
	if err := a.waitForAPI(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}

	if a.leader, err = newLeadership(
		a.kube.CoordinationV1(), a.options.Namespace, a.config.AppName, a.options.PodName, a.config.Labels, func() {
			a.userTokens.Wake() // the leader deletes unused service accounts
			a.triggers.fireAll()
		},
	); err != nil {
		return err
	}
	if a.config.ClusterSigner == enabled {
		if a.clusterSigner, err = signer.NewCluster(signer.ClusterOptions{
			Agent: a.rest, Server: a.config.Discovery.URL, Labels: a.config.Labels, Changed: a.signerChanged,
		}); err != nil {
			return err
		}
	}
	if a.userTokens, err = a.newUserTokens(); err != nil {
		return err
	}
	account := a.config.Names.ImpersonationProxyServiceAccount
	token, err := relay.NewServiceAccountToken(a.rest, a.options.Namespace, account)
	if err != nil {
		return err
	}

	proxyMetrics := proxy.NewMetrics()
	a.credential = a.newSelfCheck(token)
	defer a.serveMetrics(ctx, proxyMetrics, a.logins, concierge.ClientMetrics{Port: a.apiPort}, a.credential)()
	group, ctx := errgroup.WithContext(ctx)
	a.proxy = &proxyRunner{
		life:    ctx,
		address: a.address(a.config.ImpersonationProxyServerPort),
		options: proxy.Options{
			ServingCertificate: a.holder.GetCertificate,
			SignerCABundle:     signerBundle(a.signer),
			Agent:              a.rest,
			Upstream:           rest.AnonymousClientConfig(a.rest),
			Token:              token,
			GroupSuffix:        a.config.APIGroupSuffix,
			DrainDelay:         parsed(a.config.ShutdownDelay),
			AllowTTL:           parsed(a.config.AccessReviews.AllowTTL),
			Processors:         a.processors,
			FlowControl:        flowcontrol.New(flowcontrol.LimitsFor(a.memory, a.processors)),
			Metrics:            proxyMetrics,
			Audit:              a.audit,
			BearerTokens:       a.bearer.With,
			TrustBundle:        a.trustBundle(),
			LoginInfo:          a.offer.Load,
			Used:               a.used,
		},
	}
	manager, err := a.newManager()
	if err != nil {
		return err
	}
	ready, err := a.addControllers(ctx, manager)
	if err != nil {
		return err
	}

	group.Go(func() error { memory.Run(ctx); return nil })
	group.Go(func() error { token.Run(ctx); return nil })
	group.Go(func() error { a.userTokens.Run(ctx); return nil })
	group.Go(func() error { a.credential.run(ctx); return nil })
	if a.clusterSigner != nil {
		group.Go(func() error { a.clusterSigner.Run(ctx); return nil })
		a.followClusterInfo(ctx)
	}
	group.Go(func() error { a.leader.run(ctx); return nil })
	group.Go(func() error { a.replicas.Run(ctx); return nil })
	group.Go(func() error { a.loginOffer.run(ctx, a.offer.Store); return nil })
	group.Go(func() error {
		if err := manager.Start(ctx); err != nil {
			return fmt.Errorf("running the controllers: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		if server := a.newConcierge(ctx, listener, ready); server != nil {
			return server.Run(ctx)
		}
		return nil
	})
	err = group.Wait()
	a.proxy.Wait()
	logr.FromContextOrDiscard(ctx).Info("Stopped the agent", "cause", context.Cause(ctx).Error()) // a signal, or an error
	return err
}

func (a *agent) address(port int32) string {
	return net.JoinHostPort(a.options.BindAddress, strconv.Itoa(int(port)))
}

// waitForAPI waits until the API server serves the CredentialIssuer API, or until ctx ends. So the agent may start
// first.
func (a *agent) waitForAPI(ctx context.Context) error {
	live, err := client.New(a.rest, client.Options{Scheme: a.scheme})
	if err != nil {
		return fmt.Errorf("creating a client: %w", err)
	}
	retry(ctx, "Failed to read the CredentialIssuer API", func(ctx context.Context) error {
		err := live.List(ctx, &configv1alpha1.CredentialIssuerList{}, client.Limit(1))
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
	return nil
}

// retry calls do every second until it succeeds or ctx ends. It logs a problem once.
func retry(ctx context.Context, message string, do func(context.Context) error) {
	logged := ""
	// The only error of the poll is that ctx has ended.
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		err := do(ctx)
		if err != nil && err.Error() != logged {
			logged = err.Error()
			logs.Warn(ctx, message, "problem", logged)
		}
		return err == nil, nil
	})
}
