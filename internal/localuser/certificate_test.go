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

// damage is a change to a good Secret, and what is expected of it. internal/issuedcert tests all kinds of damage.
type damage struct {
	name    string
	damage  func(t *testing.T, secret *corev1.Secret) *corev1.Secret
	after   time.Duration // how much later the Secret is read
	want    string        // the part and the reason for a repair; none when empty
	keepsCA bool
}

func damages() []damage {
	same := func(_ *testing.T, secret *corev1.Secret) *corev1.Secret { return secret }
	set := func(key, value string) func(*testing.T, *corev1.Secret) *corev1.Secret {
		return func(_ *testing.T, secret *corev1.Secret) *corev1.Secret {
			secret.Data[key] = []byte(value)
			return secret
		}
	}
	return []damage{
		{name: "keeps a good one", damage: same, keepsCA: true},
		{
			name: "issues everything again when it is gone", want: "CA Missing",
			damage: func(*testing.T, *corev1.Secret) *corev1.Secret { return nil },
		},
		{name: "replaces a CA that is no PEM", damage: set(caCertificateKey, "hello"), want: "CA Damaged", keepsCA: true},
		{name: "replaces a CA that expired", damage: same, after: caLife, want: "CA Expired"},
		{
			name: "replaces a certificate that is no PEM", damage: set(certificateChainKey, "hello"),
			want: "certificate Damaged", keepsCA: true,
		},
		{
			name: "replaces an expiring certificate", damage: same,
			after: 250 * 24 * time.Hour, want: "certificate Expiring", keepsCA: true,
		},
		{name: "replaces a certificate with a name too few", damage: func(t *testing.T, s *corev1.Secret) *corev1.Secret {
			t.Helper()
			return reissue(t, s, certs.SANs{DNSNames: []string{serviceHost}}, start)
		}, want: "certificate SANMismatch", keepsCA: true},
	}
}

// reissue puts a certificate for names into the Secret, issued by the CA in it.
func reissue(t *testing.T, secret *corev1.Secret, names certs.SANs, now time.Time) *corev1.Secret {
	t.Helper()
	ca, err := certs.LoadCA(secret.Data[caCertificateKey], secret.Data[caPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.IssueServing(names, now, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	secret.Data[certificateChainKey], secret.Data[privateKeyKey] = pair.CertPEM, pair.KeyPEM
	return secret
}

func TestCertificateIsRepaired(t *testing.T) {
	t.Parallel()
	for _, test := range damages() {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			store, clock := &secretStore{}, clocktesting.NewFakeClock(start)
			c := newTestCertificate(t, store, clock)
			reconcile(t, c)
			bundle := store.read().Data[caCertificateKey]
			damaged := test.damage(t, store.read())
			store.put(damaged)
			writes := store.writes
			clock.SetTime(start.Add(test.after))

			var reason string
			if found := issuedcert.Inspect(c.policy, damaged, clock.Now()).Verdict(); found != nil {
				reason = fmt.Sprintf("%s %s", found.Part, found.Reason)
			}
			if reason != test.want {
				t.Errorf("want reason %q, got %q", test.want, reason)
			}
			reconcile(t, c)
			if repaired := store.writes > writes; repaired != (test.want != "") {
				t.Errorf("want repaired %v, got %v", test.want != "", repaired)
			}
			now := store.read().Data[caCertificateKey]
			if same := string(now) == string(bundle); same != test.keepsCA {
				t.Errorf("want the CA kept: %v, got %v", test.keepsCA, same)
			}
			served(t, c, now, serviceHost)
		})
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

// Two replicas that start at once must end with one CA.
func TestCertificateOfTwoReplicas(t *testing.T) {
	t.Parallel()
	store, clock := &secretStore{}, clocktesting.NewFakeClock(start)
	ahead, behind := newTestCertificate(t, store, clock), newTestCertificate(t, store, clock)
	behind.read = func() *corev1.Secret { return nil } // it has not seen the other's Secret yet
	reconcile(t, ahead)
	bundle := store.read().Data[caCertificateKey]
	if _, err := behind.reconcile(t.Context()); !apierrors.IsAlreadyExists(err) {
		t.Fatalf("want AlreadyExists, got %v", err)
	}
	behind.read = store.read
	reconcile(t, behind)
	served(t, behind, bundle, serviceHost)

	stale := store.read()
	stale.Data[certificateChainKey] = nil
	behind.read = func() *corev1.Secret { return stale }
	store.put(store.read()) // somebody wrote meanwhile
	if _, err := behind.reconcile(t.Context()); !apierrors.IsConflict(err) {
		t.Errorf("want a conflict, got %v", err)
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
