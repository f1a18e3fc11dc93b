// Package authenticators is what the controllers of WebhookAuthenticators and JWTAuthenticators have in common: reading
// the CA bundle, putting usable authenticators into the cache, and reporting conditions. A Kind contains the
// differences.
//
// Every replica evaluates every object and fills its own cache of authenticators; the leader writes the status.
package authenticators

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
)

// FieldManager is the field manager of everything that the agent applies.
const FieldManager = "pinniped-agent"

// workers is the number of concurrent evaluations; a probe of an unreachable address takes seconds.
const workers = 4

// patience is how long an evaluation may take before the status says that it is in progress.
const patience = 300 * time.Millisecond

// Getter gets single objects by name, from a cache once they are watched.
type Getter[T client.Object] interface {
	Get(ctx context.Context, name types.NamespacedName) (T, bool, error)
	Forget(keep func(types.NamespacedName) bool)
}

// Cache holds usable authenticators. authenticator.Cache implements it.
type Cache interface {
	// Expect says that the authenticator exists, and which issuer its tokens have ("" for a webhook).
	Expect(kind, name, issuer string)
	// Put makes an authenticator usable.
	Put(kind, name string, authenticator authenticator.Token)
	// Suspend says that the authenticator exists but is unusable, and why. It reports whether it was usable before.
	Suspend(kind, name, why string) bool
	// Remove says that the authenticator does not exist. It reports whether it was usable before.
	Remove(kind, name string) bool
}

// Kind is what differs between the kinds of authenticators.
type Kind struct {
	// Name is the kind, such as "WebhookAuthenticator". It is also the key of its authenticators in the cache.
	Name string
	// New returns an empty object, NewList an empty list of them.
	New     func() client.Object
	NewList func() client.ObjectList
	// TLS and Status return these parts of an object.
	TLS    func(client.Object) *authenticationv1alpha1.TLSSpec
	Status func(client.Object) Status
	// Issuer returns the issuer of an object's tokens; nil for a kind whose tokens have no issuer.
	Issuer func(client.Object) string
	// Evaluate checks an object. It returns its conditions and whether its authenticator is usable. before is Known of
	// the previous evaluation, or nil.
	Evaluate func(ctx context.Context, object client.Object, bundle CABundle, before Known) Evaluation
	// Checking returns the conditions to report while Evaluate waits for the network.
	Checking func(object client.Object, bundle CABundle) []metav1.Condition
}

// Status is the status of both kinds.
type Status struct {
	Conditions []metav1.Condition                        `json:"conditions,omitempty"`
	Phase      authenticationv1alpha1.AuthenticatorPhase `json:"phase,omitempty"`
}

// CABundle is the CA bundle with which the agent verifies a webhook or an issuer.
type CABundle struct {
	PEM       []byte           // nil for the system roots
	Condition metav1.Condition // whether PEM is valid
}

// Usable reports whether PEM is valid.
func (b CABundle) Usable() bool { return b.Condition.Status == metav1.ConditionTrue }

// Pool returns the bundle's certificates; nil means the system roots.
func (b CABundle) Pool() *x509.CertPool {
	if b.PEM == nil {
		return nil
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(b.PEM)
	return roots
}

// Sum returns a hash of the bundle, for comparison. The system roots are hashed as an empty bundle.
func (b CABundle) Sum() [sha256.Size]byte { return sha256.Sum256(b.PEM) }

// Known is the state of one object between evaluations.
type Known interface {
	// InUse returns the authenticator for the cache, or nil.
	InUse() authenticator.Token
	// Release closes what this evaluation has opened and next does not use. next may be nil.
	Release(next Known)
}

// Evaluation is the result of an evaluation.
type Evaluation struct {
	Conditions   []metav1.Condition // without Ready
	Known        Known              // nil if nothing is usable
	RequeueAfter time.Duration
}

// Reconciler evaluates the objects of one kind. Its exported fields must be set before SetupWithManager. Secrets and
// ConfigMaps must not be shared: it forgets objects that no authenticator of the kind names.
type Reconciler struct {
	Kind       Kind
	Client     client.Client // reads objects of the kind from its cache; writes their status
	Secrets    Getter[*corev1.Secret]
	ConfigMaps Getter[*corev1.ConfigMap]
	Cache      Cache
	IsLeader   func() bool
	// Wake receives an event when a Secret, a ConfigMap or the leader changes.
	Wake <-chan event.GenericEvent

	Namespace string // of the Secrets and ConfigMaps
	Clock     clock.PassiveClock

	mu       sync.Mutex
	known    map[string]Known
	sources  map[string]reference
	verdicts map[string]verdict
	loading  loading
}

// verdict is the result of the last evaluation of an object.
type verdict struct {
	generation int64
	conditions []metav1.Condition // including Ready
}

// reference is the source of an authenticator's CA bundle.
type reference struct {
	kind authenticationv1alpha1.CertificateAuthorityDataSourceKind
	name string
}

// SetupWithManager makes mgr run the reconciler on every replica.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	logKey := strings.ToLower(strings.TrimSuffix(r.Kind.Name, "Authenticator")) + "Authenticator" // "jwtAuthenticator"
	return ctrl.NewControllerManagedBy(mgr).
		Named(strings.ToLower(r.Kind.Name)).
		For(r.Kind.New()). // also for status changes, to correct those of other writers at once
		WatchesRawSource(source.Channel(r.Wake, handler.EnqueueRequestsFromMapFunc(r.all))).
		WithLogConstructor(func(request *reconcile.Request) logr.Logger {
			if request == nil {
				return ctrl.Log.V(2) // controller-runtime's own messages
			}
			return ctrl.Log.WithValues(logKey, request.Name)
		}).
		WithOptions(controller.Options{
			NeedLeaderElection:      ptr.To(false),
			MaxConcurrentReconciles: workers,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
				20*time.Millisecond, 15*time.Second),
		}).
		Complete(r)
}

// all returns a request for each object.
func (r *Reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	requests, err := r.list(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "Failed to list authenticators", "kind", r.Kind.Name)
		return nil
	}
	return requests
}

func (r *Reconciler) list(ctx context.Context) ([]reconcile.Request, error) {
	list := r.Kind.NewList()
	if err := r.Client.List(ctx, list); err != nil {
		return nil, err
	}
	var requests []reconcile.Request
	err := meta.EachListItem(list, func(item runtime.Object) error {
		object, err := meta.Accessor(item)
		if err == nil {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: object.GetName()}})
		}
		return err
	})
	return requests, err
}

// Reconcile evaluates one object, puts its authenticator into or out of use, and, on the leader, reports.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := r.Kind.New()
	if err := r.Client.Get(ctx, request.NamespacedName, object); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("reading %s %q: %w", r.Kind.Name, request.Name, err)
	} else if err != nil || object.GetDeletionTimestamp() != nil {
		before := r.recall(request.Name)
		r.follow(request.Name, nil)
		r.keep(request.Name, nil, verdict{})
		if r.Cache.Remove(r.Kind.Name, request.Name) {
			log.FromContext(ctx).Info("Disabled authenticator")
		}
		release(before, nil)
		return ctrl.Result{}, nil
	}

	issuer := ""
	if r.Kind.Issuer != nil {
		issuer = r.Kind.Issuer(object)
	}
	r.Cache.Expect(r.Kind.Name, request.Name, issuer) // before the evaluation, which may take long
	spec := r.Kind.TLS(object)
	r.follow(request.Name, spec)
	from, err := r.fetchSource(ctx, spec)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("reading the CA bundle of %s %q: %w", r.Kind.Name, request.Name, err)
	}
	var bundle CABundle
	bundle.PEM, bundle.Condition = checkTLS(spec, from)
	before := r.recall(request.Name)
	found := r.evaluate(ctx, object, bundle, before)
	if ctx.Err() != nil {
		return ctrl.Result{}, ctx.Err() // the agent is stopping; an interrupted probe is inconclusive
	}
	conditions := summed(r.Kind.Name, found.Conditions)
	r.publish(ctx, request.Name, inUse(before), inUse(found.Known), conditions)
	r.keep(request.Name, found.Known, verdict{object.GetGeneration(), conditions}) // once it is in use: see Loaded
	release(before, found.Known)
	if r.IsLeader() {
		if err := r.report(ctx, object, conditions); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: found.RequeueAfter}, nil
}

// evaluate checks an object. While that takes longer than patience, the leader reports what is known so far, and
// corrects changes of other writers.
func (r *Reconciler) evaluate(ctx context.Context, object client.Object, bundle CABundle, before Known) Evaluation {
	done := make(chan Evaluation, 1)
	go func() { done <- r.Kind.Evaluate(ctx, object, bundle, before) }()
	for {
		select {
		case found := <-done:
			return found
		case <-time.After(patience):
		}
		if !r.IsLeader() {
			continue
		}
		if err := r.reportMeanwhile(ctx, object, bundle); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).V(2).Info("Failed to update the authenticator's status", "problem", err.Error())
		}
	}
}

// reportMeanwhile reports on an object that is being evaluated: the result of the last evaluation of this generation,
// or, if there is none, that it is being checked.
func (r *Reconciler) reportMeanwhile(ctx context.Context, evaluated client.Object, bundle CABundle) error {
	object := r.Kind.New()
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(evaluated), object); err != nil {
		return client.IgnoreNotFound(err)
	}
	generation := object.GetGeneration()
	if generation != evaluated.GetGeneration() || object.GetUID() != evaluated.GetUID() {
		return nil // its own evaluation is next
	}
	r.mu.Lock()
	last, known := r.verdicts[object.GetName()]
	r.mu.Unlock()
	switch {
	case known && last.generation == generation:
		return r.report(ctx, object, last.conditions)
	case slices.ContainsFunc(r.Kind.Status(object).Conditions, func(c metav1.Condition) bool {
		return c.Type == TypeReady && c.ObservedGeneration == generation && c.Reason != reasonChecking
	}):
		return nil // found by an earlier leader; it stays until there is a new result
	}
	return r.report(ctx, object, summed(r.Kind.Name, r.Kind.Checking(object, bundle)))
}

func inUse(k Known) authenticator.Token {
	if k == nil {
		return nil
	}
	return k.InUse()
}

func release(k, next Known) {
	if k != nil && k != next {
		k.Release(next)
	}
}

// publish puts the authenticator into or out of use.
func (r *Reconciler) publish(
	ctx context.Context,
	name string,
	before, after authenticator.Token,
	conditions []metav1.Condition,
) {
	switch {
	case after == nil:
		if r.Cache.Suspend(r.Kind.Name, name, problem(conditions)) {
			logs.Warn(ctx, "Disabled authenticator", "problem", problem(conditions))
		}
	case before != after:
		r.Cache.Put(r.Kind.Name, name, after)
		log.FromContext(ctx).Info("Enabled authenticator")
	}
}

// problem returns the message of the first false condition.
func problem(conditions []metav1.Condition) string {
	for _, condition := range conditions {
		if condition.Status == metav1.ConditionFalse {
			return condition.Message
		}
	}
	return ""
}

// report writes the status, if it differs.
func (r *Reconciler) report(ctx context.Context, object client.Object, conditions []metav1.Condition) error {
	before := r.Kind.Status(object)
	desired := desiredStatus(before, object.GetGeneration(), conditions, r.Clock.Now())
	if equality.Semantic.DeepEqual(desired, before) {
		return nil
	}
	gvk, err := apiutil.GVKForObject(object, r.Client.Scheme())
	if err != nil {
		return fmt.Errorf("finding the kind of a %s: %w", r.Kind.Name, err)
	}
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&desired)
	if err != nil {
		return fmt.Errorf("encoding the status: %w", err)
	}
	patch := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	patch.SetGroupVersionKind(gvk)
	patch.SetName(object.GetName())
	patch.SetUID(object.GetUID())
	if err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(patch),
		client.FieldOwner(FieldManager), client.ForceOwnership); apierrors.IsNotFound(err) {
		return nil // it was deleted
	} else if err != nil {
		return fmt.Errorf("updating the status of %s %q: %w", r.Kind.Name, object.GetName(), err)
	}
	log.FromContext(ctx).Info("Updated the authenticator's status", "phase", desired.Phase)
	return nil
}

// desiredStatus returns the new status. A condition keeps its transition time while its status is unchanged.
func desiredStatus(before Status, generation int64, conditions []metav1.Condition, now time.Time) Status {
	desired := Status{Phase: phase(conditions)}
	for _, condition := range conditions {
		condition.ObservedGeneration = generation
		condition.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
		for _, old := range before.Conditions {
			if old.Type == condition.Type && old.Status == condition.Status {
				condition.LastTransitionTime = old.LastTransitionTime
			}
		}
		desired.Conditions = append(desired.Conditions, condition)
	}
	slices.SortFunc(desired.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	return desired
}

func (r *Reconciler) recall(name string) Known {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[name]
}

// keep stores the result of an evaluation. An empty verdict means that the object was deleted.
func (r *Reconciler) keep(name string, k Known, v verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known, r.verdicts = map[string]Known{}, map[string]verdict{}
	}
	if r.known[name] = k; k == nil {
		delete(r.known, name)
	}
	if r.verdicts[name] = v; v.conditions == nil {
		delete(r.verdicts, name)
	}
}

// follow records the source of an authenticator's CA bundle before it is read, and stops watching Secrets and
// ConfigMaps that no authenticator names any more.
func (r *Reconciler) follow(name string, spec *authenticationv1alpha1.TLSSpec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sources == nil {
		r.sources = map[string]reference{}
	}
	delete(r.sources, name)
	if spec != nil && spec.CertificateAuthorityDataSource != nil {
		r.sources[name] = reference{spec.CertificateAuthorityDataSource.Kind, spec.CertificateAuthorityDataSource.Name}
	}
	named := func(kind authenticationv1alpha1.CertificateAuthorityDataSourceKind) func(types.NamespacedName) bool {
		return func(object types.NamespacedName) bool {
			for _, from := range r.sources {
				if from.kind == kind && from.name == object.Name && object.Namespace == r.Namespace {
					return true
				}
			}
			return false
		}
	}
	r.Secrets.Forget(named(authenticationv1alpha1.CertificateAuthorityDataSourceKindSecret))
	r.ConfigMaps.Forget(named(authenticationv1alpha1.CertificateAuthorityDataSourceKindConfigMap))
}

// loadPatience is how long a starting replica waits for authenticators that do not respond. An evaluation gives up on
// an unreachable address after the same time.
const loadPatience = 10 * time.Second

// loading is the state of Loaded between calls.
type loading struct {
	done  bool
	since time.Time // the first call that could list the objects
}

// Loaded returns nil once every authenticator of the kind has been evaluated, else an error that names one. Until then,
// a login at this replica might fail because its authenticator seems not to exist. After loadPatience it returns nil
// anyway, so that an unavailable authenticator does not block the users of others. Once nil, it stays nil.
func (r *Reconciler) Loaded(ctx context.Context) error {
	r.mu.Lock()
	done := r.loading.done
	r.mu.Unlock()
	if done {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second) // List blocks until the informer is synced
	defer cancel()
	requests, err := r.list(ctx)
	if err != nil {
		return fmt.Errorf("listing %ss: %w", r.Kind.Name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Clock.Now()
	if r.loading.since.IsZero() {
		r.loading.since = now
	}
	for _, request := range requests {
		if _, evaluated := r.verdicts[request.Name]; evaluated {
			continue
		}
		problem := fmt.Errorf("%s %q has not been checked yet", r.Kind.Name, request.Name)
		if now.Sub(r.loading.since) < loadPatience {
			return problem
		}
		logs.Warn(ctx, "Became ready before all authenticators loaded", "problem", problem.Error())
		break
	}
	r.loading.done = true
	return nil
}

const (
	// ProbeEvery is the time between probes while they succeed.
	ProbeEvery = 2 * time.Minute
	// ProbeLate is the maximum time between probes while they fail.
	ProbeLate = 30 * time.Second

	probeSoon = time.Second // after the first failure; doubled after each further one
)

// Pace says when to probe next: periodically while probes succeed, with exponential backoff while they fail.
type Pace struct {
	at       time.Time
	failures int
}

// Due reports whether it is time to probe.
func (p Pace) Due(now time.Time) bool { return !now.Before(p.at) }

// Wait returns how long to wait until the next probe.
func (p Pace) Wait(now time.Time) time.Duration { return max(p.at.Sub(now), 0) + time.Millisecond }

// After returns the pace after a probe at now.
func (p Pace) After(succeeded bool, now time.Time) Pace {
	if succeeded {
		return Pace{at: now.Add(ProbeEvery)}
	}
	return Pace{at: now.Add(min(probeSoon<<min(p.failures, 10), ProbeLate)), failures: p.failures + 1}
}
