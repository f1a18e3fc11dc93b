package webhookauthenticator

import (
	"context"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
)

// FieldManager is the name under which the agent writes.
const FieldManager = "pinniped-agent"

// Kind is the kind under which authenticators stand in the cache.
const Kind = "WebhookAuthenticator"

// workers is how many objects are evaluated at once; a probe of a dead address takes seconds.
const workers = 4

// Getter reads single objects by name, from memory once they are known, until they are forgotten.
type Getter[T client.Object] interface {
	Get(ctx context.Context, name types.NamespacedName) (T, bool, error)
	Forget(keep func(types.NamespacedName) bool)
}

// Cache is where usable authenticators go.
type Cache interface {
	Put(kind, name string, authenticator authenticator.Token)
	Remove(kind, name string) bool
}

// Reconciler evaluates WebhookAuthenticators. Its exported fields are set before SetupWithManager. Secrets and ConfigMaps are its own:
// it forgets what no WebhookAuthenticator names any more.
type Reconciler struct {
	Client     client.Client // WebhookAuthenticators from its cache; writes their status
	Secrets    Getter[*corev1.Secret]
	ConfigMaps Getter[*corev1.ConfigMap]
	Cache      Cache
	IsLeader   func() bool
	// Wake brings an event whenever a Secret, a ConfigMap or leadership changed.
	Wake <-chan event.GenericEvent

	Namespace string    // of the Secrets and ConfigMaps
	Proxy     ProxyFunc // nil: none
	// Dial makes a TLS connection to a webhook and closes it; the function Dial, except in tests.
	Dial  func(ctx context.Context, address string, roots *x509.CertPool) error
	Clock clock.PassiveClock

	mu      sync.Mutex
	known   map[string]*known
	sources map[string]reference
}

// reference is the object that a WebhookAuthenticator takes its CA bundle from.
type reference struct {
	kind authenticationv1alpha1.CertificateAuthorityDataSourceKind
	name string
}

// SetupWithManager makes mgr run the reconciler on every replica.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("webhookauthenticator").
		For(&authenticationv1alpha1.WebhookAuthenticator{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Channel(r.Wake, handler.EnqueueRequestsFromMapFunc(r.all))).
		WithLogConstructor(func(request *reconcile.Request) logr.Logger {
			if request == nil {
				return ctrl.Log.V(2) // of the controller's own machinery
			}
			return ctrl.Log.WithValues("webhookAuthenticator", request.Name)
		}).
		WithOptions(controller.Options{
			NeedLeaderElection:      ptr.To(false),
			MaxConcurrentReconciles: workers,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
				20*time.Millisecond, 15*time.Second),
		}).
		Complete(r)
}

// all returns a request for each WebhookAuthenticator.
func (r *Reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var list authenticationv1alpha1.WebhookAuthenticatorList
	if err := r.Client.List(ctx, &list); err != nil {
		log.FromContext(ctx).Error(err, "Could not list WebhookAuthenticators")
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// Reconcile evaluates one WebhookAuthenticator, makes it usable or not, and reports, if this replica leads.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var object authenticationv1alpha1.WebhookAuthenticator
	if err := r.Client.Get(ctx, request.NamespacedName, &object); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("reading WebhookAuthenticator %q: %w", request.Name, err)
	} else if err != nil || object.DeletionTimestamp != nil {
		before := r.recall(request.Name)
		r.follow(request.Name, nil)
		r.remember(request.Name, nil)
		r.publish(ctx, request.Name, before, finding{})
		return ctrl.Result{}, nil
	}

	r.follow(request.Name, object.Spec.TLS)
	from, err := r.fetchSource(ctx, object.Spec.TLS)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("reading the CA bundle of WebhookAuthenticator %q: %w", request.Name, err)
	}
	before := r.recall(request.Name)
	found := r.evaluate(ctx, &object.Spec, from, before)
	if ctx.Err() != nil {
		return ctrl.Result{}, ctx.Err() // the agent stops; a probe that was broken off says nothing
	}
	r.remember(request.Name, found.known)
	r.publish(ctx, request.Name, before, found)
	if r.IsLeader() {
		if err := r.report(ctx, &object, found.conditions); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: found.requeueAfter}, nil
}

// publish makes the authenticator usable, or takes it away.
func (r *Reconciler) publish(ctx context.Context, name string, before *known, found finding) {
	switch {
	case !found.usable:
		if r.Cache.Remove(Kind, name) {
			log.FromContext(ctx).Info("Took the authenticator out of use")
		}
	case before == nil || !before.proven || before.webhook != found.known.webhook:
		r.Cache.Put(Kind, name, found.known.webhook)
		log.FromContext(ctx).Info("Put the authenticator into use")
	}
	if before != nil && (found.known == nil || before.webhook != found.known.webhook) {
		before.webhook.Close()
	}
}

// report writes the status, unless it says so already.
func (r *Reconciler) report(ctx context.Context, object *authenticationv1alpha1.WebhookAuthenticator, conditions []metav1.Condition) error {
	desired := desiredStatus(object, conditions, r.Clock.Now())
	if equality.Semantic.DeepEqual(desired, object.Status) {
		return nil
	}
	gvk, err := apiutil.GVKForObject(object, r.Client.Scheme())
	if err != nil {
		return fmt.Errorf("finding the kind of a WebhookAuthenticator: %w", err)
	}
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&desired)
	if err != nil {
		return fmt.Errorf("encoding the status: %w", err)
	}
	patch := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	patch.SetGroupVersionKind(gvk)
	patch.SetName(object.Name)
	patch.SetUID(object.UID)
	if err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(patch),
		client.FieldOwner(FieldManager), client.ForceOwnership); apierrors.IsNotFound(err) {
		return nil // it was deleted meanwhile
	} else if err != nil {
		return fmt.Errorf("updating the status of WebhookAuthenticator %q: %w", object.Name, err)
	}
	log.FromContext(ctx).Info("Reported on the WebhookAuthenticator", "phase", desired.Phase)
	return nil
}

// desiredStatus is the status that says what was found. A condition keeps its time while its status stays the same.
func desiredStatus(object *authenticationv1alpha1.WebhookAuthenticator, conditions []metav1.Condition, now time.Time) authenticationv1alpha1.WebhookAuthenticatorStatus {
	desired := authenticationv1alpha1.WebhookAuthenticatorStatus{Phase: phase(conditions)}
	for _, condition := range conditions {
		condition.ObservedGeneration = object.Generation
		condition.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
		for _, old := range object.Status.Conditions {
			if old.Type == condition.Type && old.Status == condition.Status {
				condition.LastTransitionTime = old.LastTransitionTime
			}
		}
		desired.Conditions = append(desired.Conditions, condition)
	}
	slices.SortFunc(desired.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	return desired
}

func (r *Reconciler) recall(name string) *known {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[name]
}

func (r *Reconciler) remember(name string, k *known) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k == nil {
		delete(r.known, name)
		return
	}
	if r.known == nil {
		r.known = map[string]*known{}
	}
	r.known[name] = k
}

// follow notes from which object a WebhookAuthenticator takes its CA bundle, before that is read, and stops following Secrets and
// ConfigMaps that none names any more.
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
