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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

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

// secretWriter is what the certificate needs of a client for Secrets in one namespace.
type secretWriter interface {
	Create(context.Context, *corev1.Secret, metav1.CreateOptions) (*corev1.Secret, error)
	Apply(context.Context, *applycorev1.SecretApplyConfiguration, metav1.ApplyOptions) (*corev1.Secret, error)
}

// servingCertificate is the certificate that the webhook serves. It follows the Secret, and replaces in it what has to be replaced.
type servingCertificate struct {
	namespace string
	names     certs.SANs
	read      func() *corev1.Secret // the Secret as last seen, or nil
	writer    secretWriter
	clock     clock.Clock
	log       logr.Logger

	served atomic.Pointer[tls.Certificate]
	// lastCA is the CA that belongs to the served certificate. Only reconcile uses it.
	lastCA  *certs.CA
	changed chan struct{} // holds an item when the Secret may have changed
	ready   chan struct{} // closed when there is a certificate to serve
}

func newServingCertificate(o *completed, read func() *corev1.Secret, writer secretWriter, log logr.Logger) *servingCertificate {
	return &servingCertificate{
		namespace: o.Namespace,
		names:     o.names,
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
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
			// Somebody else was faster. Their Secret is on its way to us.
			wait = firstRetry
		default:
			c.log.Error(err, "Could not keep the serving certificate up to date", "secret", klog.KRef(c.namespace, ServingSecretName))
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
	secret, now := c.read(), c.clock.Now()
	in := inspect(dataOf(secret), secret != nil, c.names)
	found := judge(in, now)
	if found != nil {
		before := in.ca
		if in, err = c.replacement(in, found, now); err != nil {
			return time.Time{}, err
		}
		if err := c.write(ctx, secret, in.data); err != nil {
			return time.Time{}, fmt.Errorf("writing the serving certificate: %w", err)
		}
		c.log.Info("Replaced serving certificate", "secret", klog.KRef(c.namespace, ServingSecretName),
			"reason", found.Reason, "message", found.Message, "newCA", before == nil || !before.Certificate().Equal(in.ca.Certificate()))
	}
	c.lastCA = in.ca
	leaf := in.pair.Leaf
	before := c.served.Load()
	if before == nil || !before.Leaf.Equal(leaf) {
		c.log.Info("Serving with certificate", "notAfter", leaf.NotAfter, "sans", sanText(leaf.DNSNames, leaf.IPAddresses))
		c.served.Store(in.pair)
	}
	if before == nil {
		close(c.ready)
	}
	return renewalTime(leaf), nil
}

func dataOf(secret *corev1.Secret) map[string][]byte {
	if secret == nil {
		return nil
	}
	return secret.Data
}

// replacement returns the content that the Secret should have. The CA stays whenever it can, because clients embed it: also when it
// was damaged in the Secret and we still know it. Only who deletes the Secret asks for a new one.
func (c *servingCertificate) replacement(in *inspected, found *verdict, now time.Time) (*inspected, error) {
	kept := in.ca
	if found.newCA {
		kept = nil
		if in.present && c.lastCA != nil {
			kept = c.lastCA
		}
	}
	if kept != nil {
		next, err := c.issue(kept, now)
		if err == nil && judge(next, now) == nil {
			return next, nil
		}
	}
	ca, err := certs.NewCA(caCommonName, now, caLife)
	if err != nil {
		return nil, fmt.Errorf("making the CA: %w", err)
	}
	next, err := c.issue(ca, now)
	if err != nil {
		return nil, err
	}
	if still := judge(next, now); still != nil {
		return nil, fmt.Errorf("issuing the serving certificate: %s", still.Message)
	}
	return next, nil
}

func (c *servingCertificate) issue(ca *certs.CA, now time.Time) (*inspected, error) {
	pair, err := ca.IssueServing(c.names, now, certificateLife-certs.Backdate)
	if err != nil {
		return nil, fmt.Errorf("issuing the serving certificate: %w", err)
	}
	caKey, err := ca.KeyPEM()
	if err != nil {
		return nil, fmt.Errorf("encoding the CA: %w", err)
	}
	return inspect(map[string][]byte{
		caCertificateKey:    ca.CertPEM(),
		caPrivateKeyKey:     caKey,
		certificateChainKey: pair.CertPEM,
		privateKeyKey:       pair.KeyPEM,
	}, true, c.names), nil
}

// write puts data into the Secret. It fails when somebody else wrote since we read: two writers would otherwise replace
// each other's CA.
func (c *servingCertificate) write(ctx context.Context, seen *corev1.Secret, data map[string][]byte) error {
	labels := map[string]string{"app": Name}
	if seen == nil {
		_, err := c.writer.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: ServingSecretName, Namespace: c.namespace, Labels: labels},
			Data:       data,
		}, metav1.CreateOptions{FieldManager: fieldManager})
		return err //nolint:wrapcheck // the caller says what was being written
	}
	apply := applycorev1.Secret(ServingSecretName, c.namespace).
		WithResourceVersion(seen.ResourceVersion).
		WithLabels(labels).
		WithData(data)
	_, err := c.writer.Apply(ctx, apply, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	return err //nolint:wrapcheck // as above
}
