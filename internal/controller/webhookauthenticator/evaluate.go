package webhookauthenticator

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"net/url"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
)

const (
	probeEvery = 2 * time.Minute // while the webhook answers
	probeSoon  = time.Second     // after it did not; doubled each time
	probeLate  = 30 * time.Second
)

// target is what an authenticator was made for. Another target needs another authenticator, and a probe of its own.
type target struct {
	endpoint string
	proxied  bool
	bundle   [sha256.Size]byte // of the CA bundle; that of nothing for the system's roots
}

// known is what a replica remembers of one WebhookAuthenticator from one evaluation to the next.
type known struct {
	target   target
	webhook  *authenticator.Webhook
	proven   bool // a probe succeeded, or none is possible
	problem  error
	failures int
	probeAt  time.Time // when to probe again
}

// finding is the outcome of an evaluation.
type finding struct {
	conditions   []metav1.Condition
	known        *known // nil: there is nothing that could be used
	usable       bool
	requeueAfter time.Duration
}

// evaluate finds out what a spec is worth. before is what was known of the object, or nil. Only the probe leaves the process.
func (r *Reconciler) evaluate(ctx context.Context, spec *authenticationv1alpha1.WebhookAuthenticatorSpec, from *origin, before *known) finding {
	bundle, tlsCondition := checkTLS(spec.TLS, from)
	endpoint, proxied, endpointCondition := checkEndpoint(spec.Endpoint, r.Proxy)
	f := finding{conditions: []metav1.Condition{tlsCondition, endpointCondition}, requeueAfter: probeEvery}
	if tlsCondition.Status != metav1.ConditionTrue || endpointCondition.Status != metav1.ConditionTrue {
		f.conditions = summed(append(f.conditions, unknown(typeConnection), unknown(typeAuthenticator)))
		return f
	}
	roots := pool(bundle)
	if f.known = before; before == nil || before.target != targetOf(endpoint, proxied, bundle) {
		webhook, err := authenticator.NewWebhook(authenticator.WebhookOptions{Endpoint: endpoint, Roots: roots, Proxy: r.Proxy})
		if err != nil {
			f.known = nil
			f.conditions = summed(append(f.conditions, unknown(typeConnection), bad(typeAuthenticator, reasonInstantiate, err.Error())))
			return f
		}
		f.known = &known{target: targetOf(endpoint, proxied, bundle), webhook: webhook}
	}

	now := r.Clock.Now()
	if !now.Before(f.known.probeAt) {
		f.known = r.probe(ctx, endpoint, roots, *f.known)
	}
	f.usable = f.known.proven
	f.requeueAfter = max(f.known.probeAt.Sub(r.Clock.Now()), 0) + time.Millisecond
	f.conditions = append(f.conditions, connectionCondition(f.known))
	if f.usable {
		f.conditions = append(f.conditions, good(typeAuthenticator, messageAuthenticator))
	} else {
		f.conditions = append(f.conditions, unknown(typeAuthenticator))
	}
	f.conditions = summed(f.conditions)
	return f
}

// probe dials the webhook and returns what is known then. One that answered before stays proven: it is the same one, and whether it is
// away for a moment or for long, each login finds out by itself.
func (r *Reconciler) probe(ctx context.Context, endpoint *url.URL, roots *x509.CertPool, k known) *known {
	if k.target.proxied {
		k.proven, k.probeAt = true, r.Clock.Now().Add(probeEvery)
		return &k
	}
	if k.problem = r.Dial(ctx, address(endpoint), roots); k.problem == nil {
		k.proven, k.failures, k.probeAt = true, 0, r.Clock.Now().Add(probeEvery)
		return &k
	}
	k.probeAt = r.Clock.Now().Add(min(probeSoon<<min(k.failures, 10), probeLate))
	k.failures++
	return &k
}

func connectionCondition(k *known) metav1.Condition {
	switch {
	case k.target.proxied:
		return good(typeConnection, messageSkippedBehind)
	case k.problem != nil:
		return bad(typeConnection, reasonDial, "cannot dial server: "+describe(k.problem))
	default:
		return good(typeConnection, messageDialed)
	}
}

// summed adds the condition that sums up the others.
func summed(conditions []metav1.Condition) []metav1.Condition {
	if slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return c.Status != metav1.ConditionTrue }) {
		return append(conditions, bad(typeReady, reasonNotReady, messageNotReady))
	}
	return append(conditions, good(typeReady, messageReady))
}

func phase(conditions []metav1.Condition) authenticationv1alpha1.AuthenticatorPhase {
	if meta.IsStatusConditionTrue(conditions, typeReady) {
		return authenticationv1alpha1.PhaseReady
	}
	return authenticationv1alpha1.PhaseError
}

func targetOf(endpoint *url.URL, proxied bool, bundle []byte) target {
	return target{endpoint: endpoint.String(), proxied: proxied, bundle: sha256.Sum256(bundle)}
}

func pool(bundle []byte) *x509.CertPool {
	if bundle == nil {
		return nil
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	return roots
}
