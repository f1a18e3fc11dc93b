// Package apiservice manages the serving certificate of the aggregated APIs, and the CA bundle in their APIServices
// with which the Kubernetes API server verifies it.
//
// Certificate and CA are in one Secret. The leader issues and renews them; every replica serves what the Secret
// contains. A new CA is in the APIServices for some minutes before it signs, and the old one stays there until it
// expires. So the API server always trusts the certificate of every replica.
package apiservice

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// FieldManager is the field manager of everything that the agent applies.
const FieldManager = "pinniped-agent"

// DefaultLife is the lifetime of a serving certificate. It is renewed after two thirds of that.
const DefaultLife = 30 * 24 * time.Hour

const (
	// announcement is how long a new CA is in the APIServices before it signs, so that every API server trusts it by
	// then.
	announcement = 5 * time.Minute
	// caLifetimes is the lifetime of a CA as a multiple of that of a certificate.
	caLifetimes = 4
	// caName is the common name of the CA, the same as in upstream Pinniped.
	caName = "Pinniped Aggregation CA"

	maxRequeue = time.Hour // in case the clock is changed
	minRequeue = time.Second
)

// The keys of the Secret. The first four are those of upstream Pinniped, so its Secret can be reused.
const (
	keyCACertificate     = "caCertificate"
	keyCAKey             = "caCertificatePrivateKey"
	keyCertificate       = "tlsCertificateChain"
	keyPrivateKey        = "tlsPrivateKey"
	keyNextCACertificate = "nextCACertificate" // trusted, but does not sign yet
	keyNextCAKey         = "nextCACertificatePrivateKey"
	keyPreviousCAs       = "previousCACertificates" // still trusted
)

// Getter gets single objects by name, from a cache once they are watched.
type Getter[T client.Object] interface {
	Get(ctx context.Context, name types.NamespacedName) (T, bool, error)
}

// Reconciler maintains the Secret, the APIServices and the certificate that this replica serves. Its exported fields
// must be set before SetupWithManager.
type Reconciler struct {
	Client client.Client // writes the APIServices
	Live   client.Reader // reads the Secret from the API server before it is written
	// SecretWriter writes the Secret.
	SecretWriter issuedcert.Writer

	Secrets     Getter[*corev1.Secret]
	APIServices Getter[*apiregistrationv1.APIService]
	IsLeader    func() bool
	// Wake receives an event when the Secret, an APIService or the leader changes.
	Wake <-chan event.GenericEvent

	// Certificate is where Reconcile puts the certificate to serve.
	Certificate *Certificate

	Namespace       string
	Secret          string   // name
	Service         string   // name of the Service in front of the aggregated APIs
	APIServiceNames []string // whose caBundle is maintained
	Labels          map[string]string
	Life            time.Duration // zero: DefaultLife
	Clock           clock.PassiveClock

	problem  logs.Problem
	failures int // consecutive
}

// firstRetry is the delay after a first failure. It doubles with each further one, up to maxDoublings times.
const (
	firstRetry   = 20 * time.Millisecond
	maxDoublings = 9
)

// SetupWithManager registers the reconciler with mgr on every replica. It runs once at the start and on every trigger.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	request := reconcile.Request{NamespacedName: r.secretName()}
	return ctrl.NewControllerManagedBy(mgr).
		Named("apiservice").
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			queue.Add(request)
			return nil
		})).
		WatchesRawSource(source.Channel(r.Wake, handler.EnqueueRequestsFromMapFunc(
			func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{request} },
		))).
		WithLogConstructor(func(request *reconcile.Request) logr.Logger {
			if request == nil {
				return ctrl.Log.V(2) // controller-runtime's own messages
			}
			return ctrl.Log.WithName("apiservice")
		}).
		WithOptions(controller.Options{NeedLeaderElection: ptr.To(false)}).
		Complete(r)
}

func (r *Reconciler) secretName() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Secret}
}

// dnsNames are the names that the API server uses for the aggregated APIs.
func (r *Reconciler) dnsNames() []string {
	name := r.Service + "." + r.Namespace + ".svc"
	return []string{name, name + ".cluster.local"}
}

// Reconcile puts the certificate in the Secret into service. The leader first renews it and updates the APIServices. A
// failure is retried, and logged once until it changes; a returned error would be logged at every retry.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	result, err := r.converge(ctx)
	if err == nil {
		r.problem.Clear()
		r.failures = 0
		return result, nil
	}
	if ctx.Err() != nil {
		return ctrl.Result{}, nil //nolint:nilerr // the agent is stopping; an interrupted reconcile is no failure
	}
	r.problem.LogRetried(ctx, r.Clock.Now(), slog.LevelError,
		"Failed to reconcile the certificate of the aggregated APIs", err.Error())
	wait := firstRetry << min(r.failures, maxDoublings)
	r.failures++
	return ctrl.Result{RequeueAfter: wait}, nil
}

func (r *Reconciler) converge(ctx context.Context) (ctrl.Result, error) {
	secret, _, err := r.Secrets.Get(ctx, r.secretName())
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("reading the serving certificate: %w", err)
	}
	now := r.Clock.Now()
	state := issuedcert.Inspect(r.policy(), secret, now)
	if !r.IsLeader() {
		r.serve(ctx, state)
		if state.Verdict() != nil {
			return ctrl.Result{RequeueAfter: maxRequeue}, nil // the watch triggers a reconcile
		}
		return ctrl.Result{RequeueAfter: requeueAfter(state, now)}, nil
	}
	if state.Verdict() != nil {
		if state, err = r.renew(ctx, now); err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := r.relabel(ctx); err != nil {
		logs.Warn(ctx, "Failed to change the labels of a Secret", "secret", r.secretName(), "problem", err.Error())
	}
	// Trust before serving.
	err = r.trust(ctx, state.Bundle())
	r.serve(ctx, state)
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: requeueAfter(state, now)}, nil
}

// policy is the policy of the Secret with the serving certificate of the aggregated APIs and its CA. Only the API
// server trusts the CA, through the APIServices, so the CA is renewed like the certificate.
func (r *Reconciler) policy() issuedcert.Policy {
	life := cmp.Or(r.Life, DefaultLife)
	return issuedcert.Policy{
		Name: "serving certificate",
		CA: &issuedcert.CAPolicy{
			CommonName: caName, Life: caLifetimes * life,
			Keys: issuedcert.Keys{Certificate: keyCACertificate, PrivateKey: keyCAKey},
			Succession: &issuedcert.Succession{
				Previous:     keyPreviousCAs,
				Announcement: announcement,
				Next:         issuedcert.Keys{Certificate: keyNextCACertificate, PrivateKey: keyNextCAKey},
			},
		},
		Certificate: &issuedcert.CertificatePolicy{
			Names: certs.SANs{DNSNames: r.dnsNames()}, MoreNames: true, Life: life,
			Keys: issuedcert.Keys{Certificate: keyCertificate, PrivateKey: keyPrivateKey},
		},
	}
}

// requeueAfter returns how long the next check of the Secret can wait. state has no verdict at now.
func requeueAfter(state *issuedcert.State, now time.Time) time.Duration {
	return min(max(state.Due().Sub(now), minRequeue), maxRequeue)
}

// serve puts the certificate into service. While it is unreadable, the previous one stays.
func (r *Reconciler) serve(ctx context.Context, state *issuedcert.State) {
	if state.Certificate == nil {
		log.FromContext(ctx).Info("Found no serving certificate for the aggregated APIs",
			"secret", r.secretName(), "reason", state.Verdict().Reason)
		return
	}
	if r.Certificate.set(state.Data()[keyCertificate], state.Data()[keyPrivateKey]) {
		log.FromContext(ctx).Info("Replaced the serving certificate of the aggregated APIs", "secret", r.secretName())
	}
}

// renew repairs the Secret until it has no verdict, and returns its state. It reads the Secret from the API server,
// because the cache may not contain the last renewal yet.
func (r *Reconciler) renew(ctx context.Context, now time.Time) (*issuedcert.State, error) {
	secret := &corev1.Secret{}
	switch err := r.Live.Get(ctx, r.secretName(), secret); {
	case apierrors.IsNotFound(err):
		secret = nil
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s: %w", r.secretName(), err)
	}
	const enough = 5
	for range enough {
		state := issuedcert.Inspect(r.policy(), secret, now)
		verdict := state.Verdict()
		if verdict == nil {
			return state, nil
		}
		next, err := state.Repair(verdict, nil)
		if err != nil {
			return nil, fmt.Errorf("renewing the serving certificate: %w", err)
		}
		if !next.SameCA(state) {
			// The APIServices get the new CA before its certificate is served, even if there was no time to announce
			// it.
			if err := r.trust(ctx, next.Bundle()); !onlyMissing(err) {
				return nil, err
			}
		}
		target := issuedcert.Target{
			Name:         r.secretName(),
			Type:         corev1.SecretTypeOpaque,
			Labels:       r.Labels,
			FieldManager: FieldManager,
		}
		if secret, err = issuedcert.Write(ctx, r.SecretWriter, target, next.Data(), secret); err != nil {
			return nil, err
		}
		log.FromContext(ctx).Info("Renewed the serving certificate of the aggregated APIs",
			"secret", r.secretName(), "part", verdict.Part, "reason", verdict.Reason, "message", verdict.Message)
	}
	return nil, errors.New("renewing the serving certificate: the new certificate is invalid; check the clock")
}

// relabel sets the configured labels on the Secret.
func (r *Reconciler) relabel(ctx context.Context) error {
	secret, found, err := r.Secrets.Get(ctx, r.secretName())
	if err != nil || !found || issuedcert.HasMetadata(secret, r.Labels) || issuedcert.Foreign(secret, r.Labels) {
		return err
	}
	target := issuedcert.Target{Name: r.secretName(), Labels: r.Labels, FieldManager: FieldManager}
	if err = issuedcert.WriteMetadata(ctx, r.SecretWriter, target, secret); issuedcert.ChangedMeanwhile(err) {
		return nil
	}
	return err
}

// errMissing is returned for an APIService that does not exist.
var errMissing = errors.New("it does not exist")

// onlyMissing reports whether the only problem is that APIServices do not exist. The API server then does not verify
// the certificate for them, and the others need it.
func onlyMissing(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	return err == nil ||
		ok && !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !errors.Is(e, errMissing) })
}

// trust sets the CA bundle of the APIServices that have another one. It creates no missing one, because the
// installation owns them.
func (r *Reconciler) trust(ctx context.Context, bundle []byte) error {
	var problems []error
	for _, name := range r.APIServiceNames {
		if err := r.trustOne(ctx, name, bundle); err != nil {
			problems = append(problems, fmt.Errorf("updating the CA bundle of APIService %q: %w", name, err))
		}
	}
	return errors.Join(problems...)
}

func (r *Reconciler) trustOne(ctx context.Context, name string, bundle []byte) error {
	service, found, err := r.APIServices.Get(ctx, types.NamespacedName{Name: name})
	if err != nil {
		return err
	}
	if !found {
		return errMissing
	}
	if bytes.Equal(service.Spec.CABundle, bundle) && !service.Spec.InsecureSkipTLSVerify {
		return nil
	}
	patch := &unstructured.Unstructured{}
	patch.SetGroupVersionKind(apiregistrationv1.SchemeGroupVersion.WithKind("APIService"))
	patch.SetName(name)
	patch.SetUID(service.UID) // so that Apply does not recreate a deleted one incompletely
	spec := map[string]any{"caBundle": base64.StdEncoding.EncodeToString(bundle), "insecureSkipTLSVerify": false}
	if err := unstructured.SetNestedMap(patch.Object, spec, "spec"); err != nil {
		return err
	}
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(patch),
		client.FieldOwner(FieldManager), client.ForceOwnership); err != nil {
		return err
	}
	log.FromContext(ctx).Info("Updated the CA bundle of an APIService", "apiService", name)
	return nil
}

// Certificate holds the serving certificate of this replica. The zero value holds none. It is safe for concurrent use.
type Certificate struct {
	mu        sync.Mutex
	cert, key []byte
	listeners []func()
}

// CertKeyPEM returns the certificate chain and the private key, or nil while there are none. The caller must not modify
// them.
func (c *Certificate) CertKeyPEM() (certPEM, keyPEM []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cert, c.key
}

// OnChange registers changed, which is called after each change of the certificate. It must not block.
func (c *Certificate) OnChange(changed func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners = append(c.listeners, changed)
}

// set puts a certificate into service and reports whether it differs from the previous one.
func (c *Certificate) set(certPEM, keyPEM []byte) bool {
	c.mu.Lock()
	if bytes.Equal(c.cert, certPEM) && bytes.Equal(c.key, keyPEM) {
		c.mu.Unlock()
		return false
	}
	c.cert, c.key = certPEM, keyPEM
	listeners := c.listeners
	c.mu.Unlock()
	for _, changed := range listeners {
		changed()
	}
	return true
}
