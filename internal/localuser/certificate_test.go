package localuser

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

var start = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// secretStore keeps one Secret as the API server would, with resource versions. read sees every write at once.
type secretStore struct {
	mu     sync.Mutex
	secret *corev1.Secret
	writes int
	fail   error
}

func (s *secretStore) read() *corev1.Secret {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.secret.DeepCopy()
}

func (s *secretStore) put(secret *corev1.Secret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(secret)
}

func (s *secretStore) store(secret *corev1.Secret) {
	s.writes++
	if s.secret = secret.DeepCopy(); s.secret != nil {
		s.secret.ResourceVersion = strconv.Itoa(s.writes)
	}
}

func (s *secretStore) Create(_ context.Context, secret *corev1.Secret, _ metav1.CreateOptions) (*corev1.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return nil, s.fail
	}
	if s.secret != nil {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, secret.Name)
	}
	s.store(secret)
	return s.secret, nil
}

func (s *secretStore) Patch(
	_ context.Context,
	name string,
	kind types.PatchType,
	body []byte,
	options metav1.PatchOptions,
	_ ...string,
) (*corev1.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return nil, s.fail
	}
	var patch struct {
		Metadata metav1.ObjectMeta
		Data     map[string][]byte
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		return nil, err
	}
	if kind != types.MergePatchType || options.FieldManager != Name || name != ServingSecretName {
		return nil, fmt.Errorf("not a patch of ours to %q: %s %+v", name, kind, options)
	}
	if s.secret == nil || patch.Metadata.ResourceVersion != s.secret.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, name, errors.New("changed"))
	}
	next := s.secret.DeepCopy()
	if next.Data == nil {
		next.Data = map[string][]byte{}
	}
	maps.Copy(next.Data, patch.Data)
	maps.DeleteFunc(next.Data, func(_ string, value []byte) bool { return value == nil })
	s.store(next)
	return s.secret, nil
}

func newTestCertificate(
	t *testing.T,
	store *secretStore,
	clock *clocktesting.FakeClock,
	names ...string,
) *servingCertificate {
	t.Helper()
	o, err := (Options{RestConfig: &rest.Config{}, ServingNames: names, Clock: clock}).complete()
	if err != nil {
		t.Fatal(err)
	}
	return newServingCertificate(o, store.read, store, logr.Discard())
}

func reconcile(t *testing.T, c *servingCertificate) (due time.Time) {
	t.Helper()
	due, err := c.reconcile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return due
}

// served returns the leaf that a client of c would see, after it verified it as that client.
func served(t *testing.T, c *servingCertificate, bundle []byte, host string) *x509.Certificate {
	t.Helper()
	pair, err := c.get(nil)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatalf("no CA bundle in %q", bundle)
	}
	if _, err := pair.Leaf.Verify(
		x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: c.clock.Now()},
	); err != nil {
		t.Fatalf("a client refuses the served certificate: %v", err)
	}
	return pair.Leaf
}

const serviceHost = "local-user-authenticator.local-user-authenticator.svc"

func TestCertificateIsMade(t *testing.T) {
	t.Parallel()
	store, clock := &secretStore{}, clocktesting.NewFakeClock(start)
	c := newTestCertificate(t, store, clock, "localhost", "127.0.0.1")
	if _, err := c.get(nil); err == nil {
		t.Error("a certificate is served before there is one")
	}
	due := reconcile(t, c)
	select {
	case <-c.ready:
	default:
		t.Error("not ready with a certificate")
	}
	secret := store.read()
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
		t.Errorf("the CA ends at %v already", ca.NotAfter)
	}
	if _, err := certs.LoadCA(secret.Data["caCertificate"], secret.Data["caCertificatePrivateKey"]); err != nil {
		t.Error(err)
	}
	if _, err := tls.X509KeyPair(secret.Data["tlsCertificateChain"], secret.Data["tlsPrivateKey"]); err != nil {
		t.Error(err)
	}
	// Once more changes nothing, and so does a second replica.
	reconcile(t, c)
	reconcile(t, newTestCertificate(t, store, clock, "localhost", "127.0.0.1"))
	if store.writes != 1 {
		t.Errorf("want 1 write, got %d", store.writes)
	}
}

func parseOne(t *testing.T, certPEM []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certPEM)
	if block == nil {
		t.Fatalf("no PEM in %q", certPEM)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestCertificateIsRenewedUnderTheSameCA(t *testing.T) {
	t.Parallel()
	store, clock := &secretStore{}, clocktesting.NewFakeClock(start)
	c := newTestCertificate(t, store, clock)
	due := reconcile(t, c)
	bundle := store.read().Data["caCertificate"]
	first := served(t, c, bundle, serviceHost)

	clock.SetTime(due.Add(-time.Second))
	reconcile(t, c)
	if store.writes != 1 {
		t.Fatal("renewed too early")
	}
	for i := range 10 { // ten renewals are more than six years
		clock.SetTime(due)
		due = reconcile(t, c)
		leaf := served(t, c, bundle, serviceHost)
		if leaf.Equal(first) || !leaf.NotAfter.After(first.NotAfter) {
			t.Fatalf("renewal %d: the certificate is not newer", i)
		}
		if got := parseOne(t, store.read().Data["tlsCertificateChain"]); !got.Equal(leaf) {
			t.Fatalf("renewal %d: the Secret holds another certificate than the one served", i)
		}
		first = leaf
	}
	if diff := cmp.Diff(string(bundle), string(store.read().Data["caCertificate"])); diff != "" {
		t.Errorf("the CA changed (-want +got):\n%s", diff)
	}
}

func TestCertificateStaysWhenTheSecretCannotBeWritten(t *testing.T) {
	t.Parallel()
	store, clock := &secretStore{}, clocktesting.NewFakeClock(start)
	c := newTestCertificate(t, store, clock)
	due := reconcile(t, c)
	bundle := store.read().Data[caCertificateKey]
	first := served(t, c, bundle, serviceHost)
	clock.SetTime(due)
	store.fail = errors.New("the API server is away")
	if _, err := c.reconcile(t.Context()); !errors.Is(err, store.fail) {
		t.Errorf("want the error of the API server, got %v", err)
	}
	if got := served(t, c, bundle, serviceHost); !got.Equal(first) {
		t.Error("a certificate is served that is not in the Secret")
	}
	store.fail = nil
	reconcile(t, c)
	if got := served(t, c, bundle, serviceHost); got.Equal(first) {
		t.Error("not renewed when the API server came back")
	}
}

func TestCertificateRun(t *testing.T) {
	t.Parallel()
	store, clock := &secretStore{}, clocktesting.NewFakeClock(start)
	store.fail = errors.New("the API server is away")
	c := newTestCertificate(t, store, clock)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.run(ctx) }()
	waits := func() {
		t.Helper()
		eventually(t, "run does not wait", clock.HasWaiters)
	}
	waits()
	store.mu.Lock()
	store.fail = nil
	store.mu.Unlock()
	clock.Step(retryAfter) // it retries
	<-c.ready
	waits()
	bundle := store.read().Data[caCertificateKey]
	first := served(t, c, bundle, serviceHost)
	clock.SetTime(issuedcert.RenewAt(first)) // it renews
	eventually(t, "not renewed", func() bool {
		pair, err := c.get(nil)
		return err == nil && !pair.Leaf.Equal(first)
	})
	waits()
	store.put(nil) // it follows changes
	c.notify()
	eventually(t, "not issued again", func() bool { return store.read() != nil })
	cancel()
	<-done
}

// eventually polls until condition holds.
func eventually(t *testing.T, otherwise string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(otherwise)
		}
	}
}
