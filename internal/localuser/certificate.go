package localuser

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	caCommonName = Name + " CA"
	fieldManager = Name

	// The CA outlives every installation, because clients embed it in their configuration.
	caLife          = 100 * 365 * 24 * time.Hour
	certificateLife = 365 * 24 * time.Hour

	// longestWait makes a clock that was set or a machine that slept harmless.
	longestWait  = time.Hour
	shortestWait = time.Second
	firstRetry   = 250 * time.Millisecond
	lastRetry    = 30 * time.Second
)

// The keys of the serving certificate's Secret. Clients read caCertificate for the CA bundle.
const (
	caCertificateKey    = "caCertificate"
	caPrivateKeyKey     = "caCertificatePrivateKey"
	certificateChainKey = "tlsCertificateChain"
	privateKeyKey       = "tlsPrivateKey"
)

// servingPolicy is the policy of the Secret ServingSecretName. Clients embed the CA, so it lasts; a deleted Secret
// asks for a new one.
func servingPolicy(names certs.SANs) issuedcert.Policy {
	return issuedcert.Policy{
		Name: "serving certificate",
		CA: &issuedcert.CAPolicy{
			CommonName: caCommonName, Life: caLife,
			Keys: issuedcert.Keys{Certificate: caCertificateKey, PrivateKey: caPrivateKeyKey},
		},
		Certificate: &issuedcert.CertificatePolicy{
			Names: names, Life: certificateLife - certs.Backdate,
			Keys: issuedcert.Keys{Certificate: certificateChainKey, PrivateKey: privateKeyKey},
		},
	}
}

// servingCertificate is the certificate that the webhook serves. It follows the Secret, and replaces in it what has
// to be replaced.
type servingCertificate struct {
	namespace string
	policy    issuedcert.Policy
	read      func() *corev1.Secret // the Secret as last seen, or nil
	writer    issuedcert.Writer
	clock     clock.Clock
	log       logr.Logger

	served atomic.Pointer[tls.Certificate]
	// seen is what the Secret held when the served certificate was read from it. Only reconcile uses it.
	seen    *issuedcert.State
	changed chan struct{} // holds an item when the Secret may have changed
	ready   chan struct{} // closed when there is a certificate to serve
}

func newServingCertificate(
	o *completed, read func() *corev1.Secret, writer issuedcert.Writer, log logr.Logger,
) *servingCertificate {
	return &servingCertificate{
		namespace: o.Namespace,
		policy:    servingPolicy(o.names),
		read:      read,
		writer:    writer,
		clock:     o.Clock,
		log:       log,
		changed:   make(chan struct{}, 1),
		ready:     make(chan struct{}),
	}
}

// get returns the certificate for a new connection.
func (c *servingCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := c.served.Load(); pair != nil {
		return pair, nil
	}
	return nil, errors.New("there is no serving certificate yet")
}

// notify wakes run. It never blocks.
func (c *servingCertificate) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// run keeps the certificate up to date until ctx is done.
func (c *servingCertificate) run(ctx context.Context) {
	retry := firstRetry
	for ctx.Err() == nil {
		due, err := c.reconcile(ctx)
		wait := min(max(due.Sub(c.clock.Now()), shortestWait), longestWait)
		switch {
		case err == nil:
			retry = firstRetry
		case issuedcert.ChangedMeanwhile(err):
			// Another replica was faster. The watch will bring its Secret.
			wait = firstRetry
		default:
			c.log.Error(err, "Could not keep the serving certificate up to date",
				"secret", klog.KRef(c.namespace, ServingSecretName))
			wait = retry
			retry = min(2*retry, lastRetry)
		}
		timer := c.clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-c.changed:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// reconcile serves what the Secret holds, after it put right what was wrong with it, and returns when to look again.
// While that fails, the last good certificate stays.
func (c *servingCertificate) reconcile(ctx context.Context) (due time.Time, err error) {
	secret := c.read()
	state := issuedcert.Inspect(c.policy, secret, c.clock.Now())
	if verdict := state.Verdict(); verdict != nil {
		before := state
		if state, err = state.Repair(verdict, c.seen); err != nil {
			return time.Time{}, err
		}
		if _, err := issuedcert.Write(ctx, c.writer, c.target(), state.Data(), secret); err != nil {
			return time.Time{}, fmt.Errorf("writing the serving certificate: %w", err)
		}
		c.log.Info("Replaced serving certificate", "secret", klog.KRef(c.namespace, ServingSecretName),
			"part", verdict.Part, "reason", verdict.Reason, "message", verdict.Message,
			"newCA", !state.SameCA(before) && !state.SameCA(c.seen))
	}
	c.seen = state
	leaf := state.Certificate.Leaf
	before := c.served.Load()
	if before == nil || !before.Leaf.Equal(leaf) {
		c.log.Info("Serving with certificate", "notAfter", leaf.NotAfter, "sans", state.Names())
		c.served.Store(state.Certificate)
	}
	if before == nil {
		close(c.ready)
	}
	return state.Due(), nil
}

func (c *servingCertificate) target() issuedcert.Target {
	return issuedcert.Target{
		Name:   types.NamespacedName{Namespace: c.namespace, Name: ServingSecretName},
		Type:   corev1.SecretTypeOpaque,
		Labels: map[string]string{"app": Name}, FieldManager: fieldManager,
	}
}
