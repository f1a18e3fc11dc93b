package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/event"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pinniped-toolkit/pinniped/internal/controller/apiservice"
	"github.com/pinniped-toolkit/pinniped/internal/controller/authenticators"
	"github.com/pinniped-toolkit/pinniped/internal/controller/credentialissuer"
	"github.com/pinniped-toolkit/pinniped/internal/controller/jwtauthenticator"
	"github.com/pinniped-toolkit/pinniped/internal/controller/webhookauthenticator"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/informer"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// newManager returns a manager whose cache only has the authenticators. Package informer watches single objects. Leader
// election is separate: see leadership.
func (a *agent) newManager() (ctrl.Manager, error) {
	manager, err := ctrl.NewManager(a.rest, ctrl.Options{
		Scheme:                 a.scheme,
		Logger:                 ctrl.Log.V(libraryLevel),
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Cache:                  cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
	})
	if err != nil {
		return nil, fmt.Errorf("creating the manager: %w", err)
	}
	return manager, nil
}

// addControllers adds all controllers to the manager, and returns the readiness check of this replica: it serves as the
// CredentialIssuer specifies, and has loaded the authenticators.
func (a *agent) addControllers(ctx context.Context, manager ctrl.Manager) (ready func() error, err error) {
	if err := a.addAPIService(ctx, manager); err != nil {
		return nil, fmt.Errorf("setting up the APIService controller: %w", err)
	}
	webhooks := &webhookauthenticator.Evaluator{
		Proxy: http.ProxyFromEnvironment,
		Dial:  webhookauthenticator.Dial,
		Clock: clock.RealClock{},
	}
	issuers := &jwtauthenticator.Evaluator{Proxy: http.ProxyFromEnvironment, Clock: clock.RealClock{}}
	var loaders []*authenticators.Reconciler
	for _, kind := range []authenticators.Kind{webhooks.Kind(), issuers.Kind()} {
		reconciler, err := a.addAuthenticators(ctx, manager, kind)
		if err != nil {
			return nil, err
		}
		loaders = append(loaders, reconciler)
	}
	issuer, err := a.addCredentialIssuer(ctx, manager)
	if err != nil {
		return nil, fmt.Errorf("setting up the CredentialIssuer controller: %w", err)
	}
	name := types.NamespacedName{Name: a.config.Names.CredentialIssuer}
	a.loginOffer = &loginOffer{
		issuer: func(ctx context.Context) (*configv1alpha1.CredentialIssuer, bool, error) {
			return issuer.Issuers.Get(ctx, name)
		},
		client:  manager.GetClient(),
		synced:  manager.GetCache().WaitForCacheSync,
		bundle:  loaders[1].CABundle,
		serving: a.holder.Current,
		suffix:  a.config.APIGroupSuffix,
	}
	return func() error {
		problems := []error{issuer.Ready()}
		for _, reconciler := range loaders {
			problems = append(problems, reconciler.Loaded(ctx))
		}
		return errors.Join(problems...)
	}, nil
}

func (a *agent) addCredentialIssuer(
	ctx context.Context, manager ctrl.Manager,
) (*credentialissuer.Reconciler, error) {
	config, err := a.groupClient(a.groups.Config, a.scheme)
	if err != nil {
		return nil, err
	}
	changed, woken := a.triggers.add()
	core := a.kube.CoreV1().RESTClient()
	a.addReplicas(ctx, changed)
	usage := &credentialissuer.Usage{
		Clock:   clock.RealClock{},
		Changed: func() { changed(types.NamespacedName{Name: a.config.Names.CredentialIssuer}) },
	}
	a.usage.Store(usage)
	trustBundles, err := a.newClusterTrustBundles(ctx, changed)
	if err != nil {
		return nil, err
	}
	names := a.config.Names
	reconciler := &credentialissuer.Reconciler{
		Client:       manager.GetClient(),
		Live:         manager.GetAPIReader(),
		SecretWriter: a.kube.CoreV1().Secrets(a.options.Namespace),
		Issuers:      informer.New(ctx, config, "credentialissuers", &configv1alpha1.CredentialIssuer{}, changed),
		Secrets:      informer.New(ctx, core, "secrets", &corev1.Secret{}, changed),
		Services:     informer.New(ctx, core, "services", &corev1.Service{}, changed),
		ConfigMaps:   informer.New(ctx, core, "configmaps", &corev1.ConfigMap{}, changed),

		ClusterTrustBundles: trustBundles,

		Permissions: a.newPermissions(ctx, changed),
		Replicas:    a.replicas,
		Events:      a.events,
		Holder:      a.holder, Signer: a.signer, Proxy: a.proxy,
		IsLeader: a.leader.Leading, Wake: woken, Warning: a.credential.warning,
		Names: credentialissuer.Names{
			CredentialIssuer:    names.CredentialIssuer,
			LoadBalancerService: names.ImpersonationLoadBalancerService,
			ClusterIPService:    names.ImpersonationClusterIPService,
			TLSSecret:           names.ImpersonationTLSCertificateSecret,
			CASecret:            names.ImpersonationCACertificateSecret,
			SignerSecret:        names.ImpersonationSignerSecret,
			LastKnownGoodSecret: a.config.AppName + "-impersonation-proxy-last-known-good-certificate",
			RevisionsConfigMap:  a.config.AppName + "-revisions",
		},
		BearerTokens:      a.bearer.Use,
		UserTokens:        a.userTokens,
		Published:         a.bundle.set,
		Usage:             usage,
		FirstSpec:         a.config.CredentialIssuerSpec,
		Namespace:         a.options.Namespace,
		RevisionRetention: parsed(a.config.RevisionRetention),

		ServiceAccount: a.serviceAccount(ctx),
		OldCluster:     a.oldCluster(ctx),

		Labels:    a.config.Labels,
		AppLabel:  a.config.AppLabel(),
		ProxyPort: a.config.ImpersonationProxyServerPort,
		Clock:     clock.RealClock{},
	}
	if a.clusterSigner != nil {
		reconciler.OtherStrategies = append(reconciler.OtherStrategies,
			credentialissuer.ClusterSigning{State: a.clusterSigner.State})
	}
	reconciler.OtherStrategies = append(reconciler.OtherStrategies,
		credentialissuer.ServiceAccountTokens{Tokens: a.userTokens})
	a.issuer.Store(reconciler)
	return reconciler, reconciler.SetupWithManager(manager)
}

// newPermissions watches the permissions to use Secrets of other namespaces.
func (a *agent) newPermissions(ctx context.Context, changed func(types.NamespacedName)) *delegation.Poller {
	return delegation.NewPoller(ctx, delegation.PollerOptions{
		Client: a.kube.CoreV1().RESTClient(), Namespace: a.options.Namespace, Changed: changed, Clock: clock.RealClock{},
		Revoke: func(secret types.NamespacedName) {
			if a.holder.Revoke(secret) {
				logs.Warn(ctx, "Stopped serving a certificate that the agent may no longer use; no other certificate is available",
					"secret", secret)
				changed(secret)
			}
		},
	})
}

// addAuthenticators adds the controller of one kind of authenticator.
func (a *agent) addAuthenticators(
	ctx context.Context, manager ctrl.Manager, kind authenticators.Kind,
) (*authenticators.Reconciler, error) {
	changed, woken := a.triggers.add()
	core := a.kube.CoreV1().RESTClient()
	reconciler := &authenticators.Reconciler{
		Kind:   kind,
		Client: manager.GetClient(),
		// These informers are not shared: the reconciler forgets every object that no authenticator of its kind refers
		// to, and another controller may still need it.
		Secrets:    informer.New(ctx, core, "secrets", &corev1.Secret{}, changed),
		ConfigMaps: informer.New(ctx, core, "configmaps", &corev1.ConfigMap{}, changed),
		Cache:      a.authenticators,
		IsLeader:   a.leader.Leading, Wake: woken,
		Namespace: a.options.Namespace,
		Clock:     clock.RealClock{},
	}
	if err := reconciler.SetupWithManager(manager); err != nil {
		return nil, fmt.Errorf("setting up the %s controller: %w", kind.Name, err)
	}
	return reconciler, nil
}

func (a *agent) addAPIService(ctx context.Context, manager ctrl.Manager) error {
	scheme := runtime.NewScheme()
	if err := apiregistrationv1.AddToScheme(scheme); err != nil {
		return err
	}
	registration, err := a.groupClient(apiregistrationv1.SchemeGroupVersion, scheme)
	if err != nil {
		return err
	}
	changed, woken := a.triggers.add()
	reconciler := &apiservice.Reconciler{
		Client:       manager.GetClient(),
		Live:         manager.GetAPIReader(),
		SecretWriter: a.kube.CoreV1().Secrets(a.options.Namespace),
		Secrets:      informer.New(ctx, a.kube.CoreV1().RESTClient(), "secrets", &corev1.Secret{}, changed),
		APIServices:  informer.New(ctx, registration, "apiservices", &apiregistrationv1.APIService{}, changed),
		IsLeader:     a.leader.Leading, Wake: woken,
		Certificate: a.apiCertificate,
		Namespace:   a.options.Namespace,
		Secret:      a.config.Names.ServingCertificateSecret,
		Service:     a.config.Names.APIService,
		APIServiceNames: []string{
			a.groups.Login.Version + "." + a.groups.Login.Group,
			a.groups.Identity.Version + "." + a.groups.Identity.Group,
		},
		Labels: a.config.Labels,
		Clock:  clock.RealClock{},
	}
	return reconciler.SetupWithManager(manager)
}

// groupClient returns a client for an API group without a typed client in client-go.
func (a *agent) groupClient(group schema.GroupVersion, scheme *runtime.Scheme) (rest.Interface, error) {
	config := rest.CopyConfig(a.rest)
	config.GroupVersion = &group
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client of API group %q: %w", group.Group, err)
	}
	return client, nil
}

// triggers wake the controllers when an object that internal/informer watches, or the leadership, has changed. Add all
// of them before the first one fires.
type triggers struct{ list []chan event.GenericEvent }

// add adds a trigger for one controller, which waits on woken. changed fires it and never blocks. The event does not
// say which object has changed, and several changes may be one event.
func (t *triggers) add() (changed func(types.NamespacedName), woken <-chan event.GenericEvent) {
	channel := make(chan event.GenericEvent, 1)
	t.list = append(t.list, channel)
	return func(types.NamespacedName) { notify(channel) }, channel
}

// fireAll wakes every controller.
func (t *triggers) fireAll() {
	for _, channel := range t.list {
		notify(channel)
	}
}

func notify(channel chan event.GenericEvent) {
	select {
	case channel <- event.GenericEvent{Object: &configv1alpha1.CredentialIssuer{}}:
	default:
	}
}
