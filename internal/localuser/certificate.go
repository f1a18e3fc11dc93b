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
	// The CA outlives every installation, because clients embed it in their configuration.
	caLife          = 100 * 365 * 24 * time.Hour
	certificateLife = 365 * 24 * time.Hour

	longestWait = time.Hour // in case the clock was set, or the machine slept
	retryAfter  = 2 * time.Second
)

// The keys of the serving certificate's Secret. Clients read caCertificate for the CA bundle.
const (
	caCertificateKey    = "caCertificate"
	caPrivateKeyKey     = "caCertificatePrivateKey"
	certificateChainKey = "tlsCertificateChain"
	privateKeyKey       = "tlsPrivateKey"
)

// servingCertificate is the certificate that the webhook serves: what the Secret holds, after internal/issuedcert has
// issued or repaired it.
type servingCertificate struct {
	namespace string
	policy    issuedcert.Policy
	read      func() *corev1.Secret // the Secret as last observed, or nil
	writer    issuedcert.Writer
	clock     clock.Clock
	log       logr.Logger

	served  atomic.Pointer[tls.Certificate]
	last    *issuedcert.State // of the served certificate; only reconcile uses it
	changed chan struct{}     // holds an item when the Secret may have changed
	ready   chan struct{}     // closed when there is a certificate to serve
}

func newServingCertificate(
	o *completed, read func() *corev1.Secret, writer issuedcert.Writer, log logr.Logger,
) *servingCertificate {
	return &servingCertificate{
		namespace: o.Namespace,
		policy: issuedcert.Policy{
			Name: "serving certificate",
			CA: &issuedcert.CAPolicy{
				CommonName: Name + " CA", Life: caLife,
				Keys: issuedcert.Keys{Certificate: caCertificateKey, PrivateKey: caPrivateKeyKey},
			},
			Certificate: &issuedcert.CertificatePolicy{
				Names: o.names, Life: certificateLife - certs.Backdate,
				Keys: issuedcert.Keys{Certificate: certificateChainKey, PrivateKey: privateKeyKey},
			},
		},
		read: read, writer: writer, clock: o.Clock, log: log,
		changed: make(chan struct{}, 1), ready: make(chan struct{}),
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
	for ctx.Err() == nil {
		due, err := c.reconcile(ctx)
		wait := min(max(due.Sub(c.clock.Now()), retryAfter), longestWait)
		if err != nil {
			wait = retryAfter
			if !issuedcert.ChangedMeanwhile(err) { // by another replica
				c.log.Error(err, "Failed to reconcile serving certificate", "secret", klog.KRef(c.namespace, ServingSecretName))
			}
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

// reconcile repairs the Secret where needed, serves what it holds, and returns when the certificate is due. On an error
// the last good certificate stays in service.
func (c *servingCertificate) reconcile(ctx context.Context) (due time.Time, err error) {
	secret := c.read()
	state := issuedcert.Inspect(c.policy, secret, c.clock.Now())
	if verdict := state.Verdict(); verdict != nil {
		before := state
		if state, err = state.Repair(verdict, c.last); err != nil {
			return time.Time{}, err
		}
		if _, err := issuedcert.Write(ctx, c.writer, issuedcert.Target{
			Name:   types.NamespacedName{Namespace: c.namespace, Name: ServingSecretName},
			Type:   corev1.SecretTypeOpaque,
			Labels: map[string]string{"app": Name}, FieldManager: Name,
		}, state.Data(), secret); err != nil {
			return time.Time{}, fmt.Errorf("writing the serving certificate: %w", err)
		}
		c.log.Info("Replaced serving certificate", "secret", klog.KRef(c.namespace, ServingSecretName),
			"part", verdict.Part, "reason", verdict.Reason, "message", verdict.Message,
			"newCA", !state.SameCA(before) && !state.SameCA(c.last))
	}
	c.last = state
	if before := c.served.Swap(state.Certificate); before == nil {
		close(c.ready)
	} else if before.Leaf.Equal(state.Certificate.Leaf) {
		return state.Due(), nil
	}
	c.log.Info("Serving certificate changed", "notAfter", state.Certificate.Leaf.NotAfter, "sans", state.Names())
	return state.Due(), nil
}
