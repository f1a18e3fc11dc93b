// Package credentialissuer configures the impersonation proxy as a CredentialIssuer specifies, and reports all
// strategies in its status.
//
// Every replica runs the reconciler. Each loads the certificate and the signer, and starts or stops its own proxy. Only
// the leader writes to the cluster: Services, Secrets, the revision history, the status.
//
// A reconcile first applies the Services (services.go) and reads the cluster (observe.go). It decides on an ordered
// list of actions (decide.go), performs them (actions.go) and computes the status (outcome.go). decide.go and
// outcome.go are pure.
package credentialissuer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// recheck is how often to reconcile without a trigger, for expiry. Nearly everything is read from caches.
const recheck = time.Minute

// recheckNodes is how often to list nodes in mode auto: up to four requests, each limited to one node.
const recheckNodes = 15 * time.Second

// Names are the names of the objects that the reconciler reads and creates.
type Names struct {
	CredentialIssuer    string
	LoadBalancerService string
	ClusterIPService    string
	TLSSecret           string // generated serving certificate
	CASecret            string // generated serving CA
	SignerSecret        string // CA of client certificates
	LastKnownGoodSecret string // backup of the external certificate in service
	RevisionsConfigMap  string // the revision history
}

// Getter gets single objects by name, from a cache once they are watched.
type Getter[T client.Object] interface {
	Get(ctx context.Context, name types.NamespacedName) (T, bool, error)
	Forget(keep func(types.NamespacedName) bool)
}

// ClusterTrustBundles gets ClusterTrustBundles by name, from a cache once they are watched.
type ClusterTrustBundles interface {
	// TrustBundle returns the PEM of a ClusterTrustBundle, or nil if it or its API does not exist.
	TrustBundle(ctx context.Context, name string) (pem *string, err error)
	// ForgetTrustBundles stops watching all except the one with this name.
	ForgetTrustBundles(except string)
}

// Proxy is the impersonation proxy of this replica.
type Proxy interface {
	// Start makes it listen, unless it does already. It returns an error if it cannot or if it had stopped by itself.
	Start(ctx context.Context) error
	// Stop stops it gracefully.
	Stop(ctx context.Context) error
	// Serving reports whether it listens.
	Serving() bool
	// Ready returns nil if it can serve requests, and otherwise why not.
	Ready() error
}

// Reconciler reconciles one CredentialIssuer. Its exported fields must be set before SetupWithManager.
type Reconciler struct {
	Client client.Client // writes everything except Secrets
	// SecretWriter writes the agent's own Secrets, in Namespace.
	SecretWriter issuedcert.Writer
	Live         client.Reader // uncached: nodes, and what is about to be written
	Issuers      Getter[*configv1alpha1.CredentialIssuer]
	Secrets      Getter[*corev1.Secret]
	Services     Getter[*corev1.Service]
	ConfigMaps   Getter[*corev1.ConfigMap]
	ClusterTrustBundles
	// Permissions is asked before a Secret in another namespace is read.
	Permissions Permissions

	Replicas Replicas
	Events   record.EventRecorder

	Holder   *serving.Holder
	Signer   *signer.Signer
	Proxy    Proxy
	IsLeader func() bool
	// Wake receives an event when the CredentialIssuer, a Secret, a Service or the leader changes.
	Wake <-chan event.GenericEvent
	// Warning, if set, returns an additional finding for the status, or nil.
	Warning func() *configv1alpha1.StrategyFinding

	// OldCluster says that the version of Kubernetes is unsupported; nil if it is supported.
	OldCluster *configv1alpha1.StrategyFinding

	// OtherStrategies are the strategies other than the proxy, in any order.
	OtherStrategies []OtherStrategy
	// UserTokens, if set, is the strategy ServiceAccountToken, which the spec turns on and off.
	UserTokens UserTokens

	// BearerTokens, if set, is called with the authenticators whose tokens the proxy accepts as bearer tokens.
	BearerTokens func(configv1alpha1.BearerTokensSpec)

	// Usage, if set, records which revisions clients use at this replica.
	Usage *Usage

	// Published, if set, is called with the trust bundle in the status, whichever replica wrote it; found is false if
	// there is none.
	Published func(bundle []byte, found bool)

	// FirstSpec is the spec of the CredentialIssuer that the leader of a new installation creates, or nil for none.
	FirstSpec *configv1alpha1.CredentialIssuerSpec

	Names     Names
	Namespace string
	// ServiceAccount is the name of the agent's ServiceAccount in Namespace; "" if unknown.
	ServiceAccount    string
	Labels            map[string]string // of everything that the agent creates
	AppLabel          string            // value of the label "app" on the agent's pods
	ProxyPort         int32
	RevisionRetention time.Duration // how long a revision is assumed to be in use after it was last published or used
	Clock             clock.PassiveClock

	phase          atomic.Int32
	badLogins      *configv1alpha1.StrategyFinding  // of the spec's kubeconfig; nil for none
	bearerProblem  *configv1alpha1.StrategyFinding  // of the spec's bearerTokens; nil for none
	decidedOn      *configv1alpha1.CredentialIssuer // the object of the current Reconcile; nil if there is none
	missingSince   time.Time                        // when the CredentialIssuer was first missing; zero if it exists
	retries        atomic.Int32
	appliedService any
	judgedService  string // resourceVersion of the Service before it was last applied
	problem, nodes logs.Problem
	known          map[string]*issuedcert.State // the last states of Secrets without a verdict
	signing        *certs.CA                    // the CA that signs client certificates

	reporting // state of the goroutine in reports.go
}

// The phases determine readiness.
const (
	phaseUnknown int32 = iota // nothing has been decided yet
	phaseOff                  // the proxy is turned off
	phaseIdle                 // the proxy has no address yet
	phaseOn                   // the proxy should serve
	phaseLost                 // no CredentialIssuer, and nothing to serve
)

// SetupWithManager registers the reconciler with mgr on every replica. It runs once at the start and on every trigger.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	request := reconcile.Request{NamespacedName: types.NamespacedName{Name: r.Names.CredentialIssuer}}
	always := handler.EnqueueRequestsFromMapFunc(
		func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{request} },
	)
	r.reports, r.again = make(chan report, 1), make(chan event.GenericEvent, 1)
	if err := mgr.Add(manager.RunnableFunc(r.writeReports)); err != nil {
		return fmt.Errorf("adding the status writer: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("credentialissuer").
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			queue.Add(request)
			return nil
		})).
		WatchesRawSource(source.Channel(r.Wake, always)).
		WatchesRawSource(source.Channel(r.again, always)).
		WithOptions(controller.Options{NeedLeaderElection: ptr.To(false)}).
		WithLogConstructor(func(request *reconcile.Request) logr.Logger {
			if request == nil {
				return ctrl.Log.V(2) // controller-runtime's own messages
			}
			return ctrl.Log.WithValues("credentialIssuer", r.Names.CredentialIssuer)
		}).
		Complete(r)
}

// Ready returns why this replica cannot serve, or nil if it can or should not.
func (r *Reconciler) Ready() error {
	switch r.phase.Load() {
	case phaseOff, phaseIdle:
		return nil
	case phaseOn:
		if r.Holder.Current() == nil {
			return serving.ErrNoCertificate
		}
		return r.Proxy.Ready()
	case phaseLost:
		return errNoIssuer
	default:
		return errors.New("the CredentialIssuer has not been read yet")
	}
}

// Wanted reports whether the proxy should serve; false if unknown.
func (r *Reconciler) Wanted() bool {
	phase := r.phase.Load()
	return phase != phaseUnknown && phase != phaseOff
}

// Reconcile configures this replica as the CredentialIssuer specifies, and queues a report, which the leader writes to
// the status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	issuer, found, err := r.Issuers.Get(ctx, types.NamespacedName{Name: req.Name})
	if err != nil {
		r.logRetried(ctx, fmt.Sprintf("could not get CredentialIssuer to update: %v", err))
		return ctrl.Result{RequeueAfter: r.retryAfter()}, nil
	}
	if !found {
		r.decidedOn = nil
		return r.withoutIssuer(ctx)
	}
	if r.Published != nil {
		r.Published(publishedBundle(issuer))
	}
	if r.Usage != nil {
		r.Usage.publish(issuer)
	}
	r.missingSince, r.decidedOn = time.Time{}, issuer
	r.useServiceAccountTokens(issuer)
	strategy, err := r.converge(ctx, issuer)
	if r.Usage != nil && !r.IsLeader() {
		h, _ := r.revisions(ctx, issuer)
		r.Usage.append(h)
	}
	r.publish(strategy)
	retry := err != nil && !errors.Is(err, errNotLeader) // the watch triggers a reconcile
	r.logStrategy(ctx, strategy, retry)
	r.handIn(report{issuer: issuer, proxy: strategy, serving: r.served(), waiting: r.Holder.Evaluation().Waiting})
	if !retry {
		r.retries.Store(0)
		return ctrl.Result{RequeueAfter: r.nextCheck(issuer)}, nil
	}
	// The problem is logged once and is in the status; a returned error would be logged at every retry.
	return ctrl.Result{RequeueAfter: r.retryAfter()}, nil
}

// nextCheck returns how long to wait for the next reconcile if nothing triggers one: until the certificate in service
// becomes valid, expires or is replaced, at most recheck, or recheckNodes in mode auto.
func (r *Reconciler) nextCheck(issuer *configv1alpha1.CredentialIssuer) time.Duration {
	wait := recheck
	if proxy := issuer.Spec.ImpersonationProxy; proxy != nil && proxy.Mode == configv1alpha1.ImpersonationProxyModeAuto {
		wait = recheckNodes
	}
	if r.badLogins != nil {
		wait = min(wait, 5*time.Second) // no event is sent when an authenticator becomes ready
	}
	if inService := r.Holder.Current(); inService != nil {
		now := r.Clock.Now()
		times := []time.Time{inService.Certificate.Leaf.NotBefore, inService.Certificate.Leaf.NotAfter}
		if waiting := r.Holder.Evaluation().Waiting; waiting != nil {
			times = append(times, waiting.Until)
		}
		for _, at := range times {
			if until := at.Sub(now) + time.Second; until > time.Second {
				wait = min(wait, until)
			}
		}
	}
	return wait
}

// firstRetry and lastRetry are the limits of the exponential backoff after failures.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = firstRetry << 7
)

// retryAfter returns how long to wait after one more consecutive failure.
func (r *Reconciler) retryAfter() time.Duration {
	return min(firstRetry<<min(r.retries.Add(1)-1, 7), lastRetry)
}

// problemMessage is the log message of all problems.
const problemMessage = "Failed to reconcile CredentialIssuer"

// problemLevel is the log level of problems: error if clients cannot connect.
func (r *Reconciler) problemLevel() slog.Level {
	if phase := r.phase.Load(); phase == phaseLost ||
		phase == phaseOn && (r.Holder.Current() == nil || !r.Proxy.Serving()) {
		return slog.LevelError
	}
	return slog.LevelWarn
}

// logProblem logs a problem that needs intervention.
func (r *Reconciler) logProblem(ctx context.Context, problem string) {
	r.problem.Log(ctx, r.problemLevel(), problemMessage, problem)
}

// logRetried logs a problem that is retried.
func (r *Reconciler) logRetried(ctx context.Context, problem string) {
	r.problem.LogRetried(ctx, r.Clock.Now(), r.problemLevel(), problemMessage, problem)
}

// logStrategy logs the strategy's problem, if any. A pending one is a warning only: a new installation waits for
// objects that others create.
func (r *Reconciler) logStrategy(ctx context.Context, strategy configv1alpha1.CredentialIssuerStrategy, retry bool) {
	switch {
	case strategy.Status == configv1alpha1.StrategySuccess || strategy.Reason == configv1alpha1.ReasonDisabled:
		r.problem.Clear()
	case strategy.Reason == configv1alpha1.ReasonPending:
		r.problem.Log(ctx, slog.LevelWarn, problemMessage, strategy.Message)
	case retry:
		r.logRetried(ctx, strategy.Message)
	default:
		r.logProblem(ctx, strategy.Message)
	}
}

// converge configures this replica and returns the strategy to report. The error, if any, is one that a retry may fix.
// It is in the strategy as well.
func (r *Reconciler) converge(
	ctx context.Context, issuer *configv1alpha1.CredentialIssuer,
) (configv1alpha1.CredentialIssuerStrategy, error) {
	spec, err := serving.Resolve(issuer, r.Namespace)
	if err == nil {
		err = r.refuseOwnCopy(spec)
	}
	if err != nil {
		// only a change of the spec can fix it, which triggers a reconcile
		return errorStrategy(coded(configv1alpha1.CodeSpecInvalid, err)), nil
	}
	r.forgetUnused(spec)
	r.useBearerTokens(ctx, spec.ImpersonationProxySpec)
	r.badLogins = r.loginProblem(ctx, spec.ImpersonationProxySpec)

	off, unreadable, err := r.turnedOff(ctx, spec.Mode, issuer)
	if err != nil {
		return errorStrategy(err), err
	}
	service, serviceErr := r.reconcileServices(ctx, spec.ImpersonationProxySpec, off == nil)
	s := r.observe(ctx, issuer, spec, service, off == nil)
	if off != nil {
		d := decideOff(spec, s)
		r.phase.Store(d.phase)
		if err := errors.Join(serviceErr, d.failure(r.apply(ctx, d))); err != nil {
			return errorStrategy(err), err
		}
		var warnings []configv1alpha1.StrategyFinding
		for _, warning := range []*configv1alpha1.StrategyFinding{r.OldCluster, unreadable} {
			if warning != nil {
				warnings = append(warnings, *warning)
			}
		}
		return withFindings(disabled(*off), warnings...), nil
	}
	d := decide(spec, s)
	if writes := d.writes(); len(writes) > 0 {
		r.observeLive(ctx, &s, writes)
		d = decide(spec, s)
	}
	r.phase.Store(d.phase)
	r.Holder.Note(d.evaluation)
	done := result{decision: d, serviceErr: serviceErr, failed: r.apply(ctx, d)}
	done.serving, done.listens = r.Holder.Current(), r.Proxy.Serving()
	done.warnings = []*configv1alpha1.StrategyFinding{
		r.OldCluster,
		unreadable,
		classProblem(spec.ImpersonationProxySpec, service),
		r.warning(),
		r.bearerProblem,
		r.badLogins,
		r.historyProblem.Load(),
		waits(d.evaluation, r.Namespace),
	}
	return done.strategy()
}

// turnedOff returns why the proxy should not run, or nil. In mode auto the nodes decide. While they cannot be listed,
// the proxy stays as it was, and a warning is returned, or an error if the previous state is unknown.
func (r *Reconciler) turnedOff(
	ctx context.Context, mode configv1alpha1.ImpersonationProxyMode, issuer *configv1alpha1.CredentialIssuer,
) (off, unreadable *configv1alpha1.StrategyFinding, err error) {
	because := func(code, message string) *configv1alpha1.StrategyFinding {
		finding := newFinding(code, configv1alpha1.FindingInfo, message)
		return &finding
	}
	switch mode {
	case configv1alpha1.ImpersonationProxyModeDisabled:
		return because(configv1alpha1.CodeDisabledBySpec, messageDisabled), nil, nil
	case configv1alpha1.ImpersonationProxyModeAuto:
		visible, err := controlPlaneVisible(ctx, r.Live)
		if err == nil {
			r.nodes.Clear()
		} else {
			on, known := r.wasOn(issuer)
			if !known {
				return nil, nil, coded(configv1alpha1.CodeNodesUnreadable, err)
			}
			visible = !on
			err = fmt.Errorf("mode auto: the proxy is unchanged until nodes can be listed: %w", err)
			unreadable = findingOf(configv1alpha1.CodeNodesUnreadable, err)
			r.nodes.LogRetried(ctx, r.Clock.Now(), slog.LevelWarn, "Failed to list nodes", err.Error())
		}
		if visible {
			off = because(configv1alpha1.CodeDisabledByNodes, messageAutoOff)
		}
		return off, unreadable, nil
	case configv1alpha1.ImpersonationProxyModeEnabled:
	}
	return nil, nil, nil
}

// wasOn reports whether the proxy was turned on at the last decision of this replica, or else according to the status.
func (r *Reconciler) wasOn(issuer *configv1alpha1.CredentialIssuer) (on, known bool) {
	switch r.phase.Load() {
	case phaseOff:
		return false, true
	case phaseOn, phaseIdle:
		return true, true
	}
	for _, strategy := range issuer.Status.Strategies {
		if strategy.Type != configv1alpha1.StrategyImpersonationProxy {
			continue
		}
		switch {
		case strategy.Reason == configv1alpha1.ReasonDisabled:
			return false, true
		case strategy.Frontend != nil || strategy.Reason == configv1alpha1.ReasonPending:
			return true, true
		}
	}
	return false, false
}

func (r *Reconciler) warning() *configv1alpha1.StrategyFinding {
	if r.Warning == nil {
		return nil
	}
	return r.Warning()
}

// forgetUnused stops watching objects that the configuration does not name any more.
func (r *Reconciler) forgetUnused(spec serving.Desired) {
	var from configv1alpha1.CertificateAuthorityDataSourceSpec
	if spec.TLS != nil && spec.TLS.CertificateAuthorityDataSource != nil {
		from = *spec.TLS.CertificateAuthorityDataSource
	}
	r.ConfigMaps.Forget(func(name types.NamespacedName) bool {
		return name.Name == r.Names.RevisionsConfigMap ||
			from.Kind == configv1alpha1.SourceConfigMap && name.Name == from.Name
	})
	if from.Kind == configv1alpha1.SourceClusterTrustBundle {
		r.ForgetTrustBundles(from.Name)
	} else {
		r.ForgetTrustBundles("")
	}
	r.Secrets.Forget(func(name types.NamespacedName) bool {
		switch name.Name {
		case r.Names.TLSSecret, r.Names.CASecret, r.Names.SignerSecret, r.Names.LastKnownGoodSecret:
			if name.Namespace == r.Namespace {
				return true
			}
		}
		return name == spec.Secret || from.Kind == configv1alpha1.SourceSecret && name == r.local(from.Name)
	})
	r.forgetPermissions(spec.Secret)
}
