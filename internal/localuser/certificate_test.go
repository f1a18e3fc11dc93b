package localuser

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

var start = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// writes counts the writes to the API server, and fails them with an error if that is set.
type writes struct {
	issuedcert.Writer
	count int
	err   error
}

func (w *writes) Create(
	ctx context.Context, secret *corev1.Secret, options metav1.CreateOptions,
) (*corev1.Secret, error) {
	if w.count++; w.err != nil {
		return nil, w.err
	}
	return w.Writer.Create(ctx, secret, options)
}

func (w *writes) Patch(
	ctx context.Context, name string, kind types.PatchType, body []byte, options metav1.PatchOptions, sub ...string,
) (*corev1.Secret, error) {
	if w.count++; w.err != nil {
		return nil, w.err
	}
	return w.Writer.Patch(ctx, name, kind, body, options, sub...)
}

// clock is a time that a test sets.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

const namespace = DefaultNamespace

type cluster struct {
	*kubefake.Clientset
	writes writes
}

func newCluster() *cluster {
	c := &cluster{Clientset: kubefake.NewClientset()}
	c.writes.Writer = c.CoreV1().Secrets(namespace)
	return c
}

// Get implements client.Reader for Secrets.
func (c *cluster) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	found, err := c.CoreV1().Secrets(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if err == nil {
		found.DeepCopyInto(into.(*corev1.Secret))
	}
	return err
}

// List implements client.Reader.
func (c *cluster) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.ErrUnsupported
}

func (c *cluster) read(t *testing.T) *corev1.Secret {
	t.Helper()
	return must.Get(c.CoreV1().Secrets(namespace).Get(t.Context(), ServingSecretName, metav1.GetOptions{}))(t)
}

func newTestCertificate(t *testing.T, cluster *cluster, clock *clock, extra ...string) *servingCertificate {
	t.Helper()
	names := must.Get(servingNames(namespace, extra))(t)
	c := newServingCertificate(names, namespace, cluster, &cluster.writes)
	c.now = clock.now
	return c
}

// reconcileNow reconciles, and returns when the certificate is due for renewal.
func reconcileNow(t *testing.T, c *servingCertificate) (due time.Time) {
	t.Helper()
	must.Get(c.Reconcile(t.Context(), reconcile.Request{}))(t)
	return c.last.Due()
}

// served verifies the certificate of c as a client with this bundle, and returns its leaf.
func served(t *testing.T, c *servingCertificate, bundle []byte, host string) *x509.Certificate {
	t.Helper()
	pair := must.Get(c.get(nil))(t)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatalf("no CA bundle in %q", bundle)
	}
	if _, err := pair.Leaf.Verify(
		x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: c.now()},
	); err != nil {
		t.Fatalf("a client refuses the served certificate: %v", err)
	}
	return pair.Leaf
}

const serviceHost = "local-user-authenticator.local-user-authenticator.svc"

func TestCertificateIsMade(t *testing.T) {
	t.Parallel()
	store, clock := newCluster(), &clock{start}
	c := newTestCertificate(t, store, clock, "localhost", "127.0.0.1")
	if _, err := c.get(nil); err == nil {
		t.Error("a certificate is served before there is one")
	}
	due := reconcileNow(t, c)
	select {
	case <-c.ready:
	default:
		t.Error("not ready with a certificate")
	}
	secret := store.read(t)
	if diff := cmp.Diff(map[string]string{"app": "local-user-authenticator"}, secret.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	var leaf *x509.Certificate
	for _, host := range []string{serviceHost, serviceHost + ".cluster.local", "localhost", "127.0.0.1"} {
		leaf = served(t, c, secret.Data["caCertificate"], host)
	}
	if life := leaf.NotAfter.Sub(leaf.NotBefore); life > 365*24*time.Hour {
		t.Errorf("the certificate lives longer than a year: %v", life)
	}
	if want := leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 3 * 2); !due.Equal(want) {
		t.Errorf("want renewal at %v, got %v", want, due)
	}
	ca := parseOne(t, secret.Data["caCertificate"])
	if got := ca.Subject.CommonName; got != "local-user-authenticator CA" {
		t.Errorf("CA is called %q", got)
	}
	if ca.NotAfter.Before(start.AddDate(99, 0, 0)) {
		t.Errorf("the CA expires at %v already", ca.NotAfter)
	}
	if _, err := certs.LoadCA(secret.Data["caCertificate"], secret.Data["caCertificatePrivateKey"]); err != nil {
		t.Error(err)
	}
	if _, err := tls.X509KeyPair(secret.Data["tlsCertificateChain"], secret.Data["tlsPrivateKey"]); err != nil {
		t.Error(err)
	}
	// Reconciling again changes nothing, also in a second replica.
	reconcileNow(t, c)
	reconcileNow(t, newTestCertificate(t, store, clock, "localhost", "127.0.0.1"))
	if store.writes.count != 1 {
		t.Errorf("want 1 write, got %d", store.writes.count)
	}
}

func parseOne(t *testing.T, certPEM []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certPEM)
	if block == nil {
		t.Fatalf("no PEM in %q", certPEM)
	}
	return must.Get(x509.ParseCertificate(block.Bytes))(t)
}

func TestCertificateIsRenewedUnderTheSameCA(t *testing.T) {
	t.Parallel()
	store, clock := newCluster(), &clock{start}
	c := newTestCertificate(t, store, clock)
	due := reconcileNow(t, c)
	bundle := store.read(t).Data["caCertificate"]
	first := served(t, c, bundle, serviceHost)

	clock.Time = due.Add(-time.Second)
	reconcileNow(t, c)
	if store.writes.count != 1 {
		t.Fatal("renewed too early")
	}
	for i := range 10 { // more than six years
		clock.Time = due
		due = reconcileNow(t, c)
		leaf := served(t, c, bundle, serviceHost)
		if leaf.Equal(first) || !leaf.NotAfter.After(first.NotAfter) {
			t.Fatalf("renewal %d: the certificate is not newer", i)
		}
		if got := parseOne(t, store.read(t).Data["tlsCertificateChain"]); !got.Equal(leaf) {
			t.Fatalf("renewal %d: the Secret holds another certificate than the one served", i)
		}
		first = leaf
	}
	if diff := cmp.Diff(string(bundle), string(store.read(t).Data["caCertificate"])); diff != "" {
		t.Errorf("the CA changed (-want +got):\n%s", diff)
	}
}

func TestCertificateStaysWhenTheSecretCannotBeWritten(t *testing.T) {
	t.Parallel()
	store, clock := newCluster(), &clock{start}
	c := newTestCertificate(t, store, clock)
	due := reconcileNow(t, c)
	bundle := store.read(t).Data["caCertificate"]
	first := served(t, c, bundle, serviceHost)
	clock.Time = due
	store.writes.err = errors.New("the API server is away")
	if _, err := c.Reconcile(t.Context(), reconcile.Request{}); !errors.Is(err, store.writes.err) {
		t.Errorf("want the error of the API server, got %v", err)
	}
	if got := served(t, c, bundle, serviceHost); !got.Equal(first) {
		t.Error("a certificate is served that is not in the Secret")
	}
	store.writes.err = nil
	reconcileNow(t, c)
	if got := served(t, c, bundle, serviceHost); got.Equal(first) {
		t.Error("not renewed when the API server came back")
	}
}

func TestServingNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"https://localhost", ""} {
		if _, err := servingNames(namespace, []string{name}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
