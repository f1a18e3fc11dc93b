package apiservice

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func mustParse(certPEM []byte) *x509.Certificate {
	block, _ := pem.Decode(certPEM)
	if block == nil {
		panic("not PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		panic(err)
	}
	return cert
}

// liveGetter gets objects from a client instead of a cache.
type liveGetter[T client.Object] struct {
	client.Client
	empty func() T
}

func (g liveGetter[T]) Get(ctx context.Context, name types.NamespacedName) (T, bool, error) {
	object := g.empty()
	if err := g.Client.Get(ctx, name, object); err != nil {
		var none T
		return none, false, client.IgnoreNotFound(err)
	}
	return object, true, nil
}

const testService = "v1alpha1.login.concierge.pinniped.dev"

// fixture is a reconciler with a fake client whose next writes can be made to fail.
type fixture struct {
	*Reconciler
	fail   error
	writes []string
}

func newFixture(t *testing.T, leader bool) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, apiregistrationv1.AddToScheme} {
		must.Do(t, add(scheme))
	}
	f := &fixture{}
	service := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: testService, UID: "u"},
		Spec:       apiregistrationv1.APIServiceSpec{Group: "g", CABundle: []byte("old")},
	}
	fakeClient := fake.NewClientBuilder().WithScheme(scheme).WithObjects(service).WithInterceptorFuncs(interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			if f.fail != nil {
				return f.fail
			}
			f.writes = append(f.writes, fmt.Sprintf("%T", object))
			return c.Apply(ctx, object, options...)
		},
	}).Build()
	f.Reconciler = &Reconciler{
		Client: fakeClient, Live: fakeClient, SecretWriter: secretWriter{f, fakeClient},
		Secrets: liveGetter[*corev1.Secret]{fakeClient, func() *corev1.Secret { return &corev1.Secret{} }},
		APIServices: liveGetter[*apiregistrationv1.APIService]{
			fakeClient, func() *apiregistrationv1.APIService { return &apiregistrationv1.APIService{} },
		},
		IsLeader: func() bool { return leader }, Certificate: &Certificate{},
		Namespace: "ns", Secret: "tls", Service: "api", APIServiceNames: []string{testService},
		Labels: map[string]string{"app": "x"}, Life: testLife, Clock: clocktesting.NewFakePassiveClock(testNow),
	}
	return f
}

// secretWriter writes Secrets with the fake client, and fails if the fixture says so.
type secretWriter struct {
	*fixture
	client client.Client
}

func (w secretWriter) Create(
	ctx context.Context, secret *corev1.Secret, options metav1.CreateOptions,
) (*corev1.Secret, error) {
	if w.fail != nil {
		return nil, w.fail
	}
	w.writes = append(w.writes, "create")
	return secret, w.client.Create(ctx, secret, client.FieldOwner(options.FieldManager))
}

func (w secretWriter) Patch(
	ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, _ ...string,
) (*corev1.Secret, error) {
	if w.fail != nil {
		return nil, w.fail
	}
	w.writes = append(w.writes, "patch")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	return secret, w.client.Patch(ctx, secret, client.RawPatch(kind, data), client.FieldOwner(options.FieldManager))
}

func (f *fixture) bundle(t *testing.T) []byte {
	t.Helper()
	var service apiregistrationv1.APIService
	must.Do(t, f.Client.Get(t.Context(), types.NamespacedName{Name: testService}, &service))
	if service.Spec.Group != "g" {
		t.Error("the rest of the APIService was changed")
	}
	return service.Spec.CABundle
}

func TestLeaderMakesTrustsAndServes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, true)
	must.Get(f.Reconcile(t.Context(), ctrl.Request{}))(t)
	var secret corev1.Secret
	must.Do(t, f.Client.Get(t.Context(), f.secretName(), &secret))
	served, _ := f.Certificate.CertKeyPEM()
	if !bytes.Equal(served, secret.Data[keyCertificate]) || len(served) == 0 || secret.Labels["app"] != "x" {
		t.Error("what is served is not what the Secret holds")
	}
	if !bytes.Equal(f.bundle(t), secret.Data[keyCACertificate]) {
		t.Error("the APIService does not trust the CA")
	}
	if err := verifies(f.bundle(t), served, testNow); err != nil {
		t.Error(err)
	}
	before := len(f.writes)
	must.Get(f.Reconcile(t.Context(), ctrl.Request{}))(t)
	if len(f.writes) != before {
		t.Errorf("the second time it wrote %v", f.writes[before:])
	}
	f.Secrets = fixedGetter{nil} // it finds no object yet
	must.Get(f.Reconcile(t.Context(), ctrl.Request{}))(t)
	if again, _ := f.Certificate.CertKeyPEM(); len(f.writes) != before || !bytes.Equal(again, served) {
		t.Errorf("with a memory that is late it wrote %v", f.writes[before:])
	}
}

func TestFollowerServesAndWritesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	if result, err := f.Reconcile(t.Context(), ctrl.Request{}); err != nil || result.RequeueAfter == 0 {
		t.Fatalf("result %v, error %v", result, err)
	}
	if served, _ := f.Certificate.CertKeyPEM(); len(served) != 0 || len(f.writes) != 0 {
		t.Errorf("it wrote %v", f.writes)
	}
	data := fresh(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "tls"}, Data: data}
	must.Do(t, f.Client.Create(t.Context(), secret))
	changes := 0
	f.Certificate.OnChange(func() { changes++ })
	for range 2 {
		must.Get(f.Reconcile(t.Context(), ctrl.Request{}))(t)
	}
	served, key := f.Certificate.CertKeyPEM()
	if !bytes.Equal(served, data[keyCertificate]) || !bytes.Equal(key, data[keyPrivateKey]) || changes != 1 {
		t.Errorf("it does not serve what the Secret holds, or said so %d times", changes)
	}

	secret.Data[keyPrivateKey] = []byte("broken")
	must.Do(t, f.Client.Update(t.Context(), secret))
	must.Get(f.Reconcile(t.Context(), ctrl.Request{}))(t)
	if still, _ := f.Certificate.CertKeyPEM(); !bytes.Equal(still, served) || len(f.writes) != 0 {
		t.Error("a broken Secret disturbed what was served")
	}
}

func TestLeaderReportsFailures(t *testing.T) {
	t.Parallel()
	f := newFixture(t, true)
	f.fail = errors.New("the API server is away")
	if _, err := f.converge(t.Context()); !errors.Is(err, f.fail) {
		t.Errorf("got %v", err)
	}
	if served, _ := f.Certificate.CertKeyPEM(); len(served) != 0 {
		t.Error("it serves what nobody trusts")
	}
}

// TestAMissingAPIService issues the first certificate while one of two APIServices is missing: the other is updated.
func TestAMissingAPIService(t *testing.T) {
	t.Parallel()
	f := newFixture(t, true)
	f.APIServiceNames = append([]string{"v1.missing"}, f.APIServiceNames...)
	_, err := f.converge(t.Context())
	if err == nil || !strings.Contains(err.Error(), `APIService "v1.missing": it does not exist`) {
		t.Errorf("it does not say which one is missing: %v", err)
	}
	served, _ := f.Certificate.CertKeyPEM()
	if len(served) == 0 {
		t.Fatal("nothing is served")
	}
	if err := verifies(f.bundle(t), served, testNow); err != nil {
		t.Error(err)
	}
}

// TestFailuresAreLoggedOnce has the API server fail for a while: that is logged once, and retries become less frequent.
func TestFailuresAreLoggedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, true)
	var logged []string
	ctx := logr.NewContext(t.Context(), funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{}))
	try := func() time.Duration {
		t.Helper()
		result, err := f.Reconcile(ctx, ctrl.Request{})
		if err != nil {
			t.Errorf("the machinery would log %v once more", err)
		}
		return result.RequeueAfter
	}
	says := func(text string, times int) {
		t.Helper()
		if got := strings.Count(strings.Join(logged, "\n"), text); got != times {
			t.Errorf("%q was logged %d times, want %d: %q", text, got, times, logged)
		}
	}
	f.fail = errors.New("the API server is away")
	first := try()
	for range 20 {
		try()
	}
	if last := try(); first != firstRetry || last != firstRetry<<maxDoublings {
		t.Errorf("the first try was followed after %s by another, and the last one after %s", first, last)
	}
	says("the API server is away", 1)
	f.fail = errors.New("the API server refuses")
	try()
	try()
	says("the API server refuses", 1)

	f.fail = nil
	if after := try(); after < time.Hour {
		t.Errorf("with nothing wrong, it looks again after %s", after)
	}
	logged = nil
	f.Secrets = fixedGetter{errors.New("the API server is away")}
	if after := try(); after != firstRetry {
		t.Errorf("after a success, the first failure is followed after %s by another try", after)
	}
	says("the API server is away", 1)
}

// fixedGetter finds nothing, and returns an error or none.
type fixedGetter struct{ err error }

func (g fixedGetter) Get(context.Context, types.NamespacedName) (*corev1.Secret, bool, error) {
	return nil, false, g.err
}

const (
	day      = 24 * time.Hour
	testLife = 30 * day
)

var (
	testNow    = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	testNames  = []string{"api.ns.svc", "api.ns.svc.cluster.local"}
	testPolicy = (&Reconciler{Namespace: "ns", Service: "api", Life: testLife}).policy()
)

// fresh returns the content of a Secret that was issued at testNow.
func fresh(t *testing.T) map[string][]byte {
	t.Helper()
	missing := issuedcert.Inspect(testPolicy, nil, testNow)
	return must.Get(missing.Repair(missing.Verdict(), nil))(t).Data()
}

func inspect(data map[string][]byte, now time.Time) *issuedcert.State {
	return issuedcert.Inspect(testPolicy, &corev1.Secret{Data: data}, now)
}

func verifies(bundle, cert []byte, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err := mustParse(cert).Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: testNames[0]})
	return err
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	data := fresh(t)
	if name := mustParse(data[keyCACertificate]).Subject.CommonName; name != "Pinniped Aggregation CA" {
		t.Errorf("the CA is called %q", name)
	}
	for at, want := range map[time.Duration]issuedcert.Reason{
		0: "", 19 * day: "", 21 * day: issuedcert.Expiring, 31 * day: issuedcert.Expired, 120*day - 14*time.Minute: issuedcert.Expired,
	} {
		var got issuedcert.Reason
		if verdict := inspect(data, testNow.Add(at)).Verdict(); verdict != nil {
			got = verdict.Reason
		}
		if got != want {
			t.Errorf("after %s: want reason %q, got %q", at, want, got)
		}
	}
}

// TestPinnipedsSecret shows that a Secret of upstream Pinniped is reused with its CA, even if its certificate has more
// names.
func TestPinnipedsSecret(t *testing.T) {
	t.Parallel()
	ca := must.Get(certs.NewCA("Pinniped Aggregation CA", testNow, 365*day))(t)
	key := must.Get(ca.KeyPEM())(t)
	names := certs.SANs{DNSNames: append([]string{"more.example.com"}, testNames...)}
	pair := must.Get(ca.IssueServing(names, testNow, 365*day))(t)
	state := inspect(map[string][]byte{
		"caCertificate": ca.CertPEM(), "caCertificatePrivateKey": key,
		"tlsCertificateChain": pair.CertPEM, "tlsPrivateKey": pair.KeyPEM,
	}, testNow.Add(day))
	if verdict := state.Verdict(); verdict != nil || state.Certificate == nil {
		t.Errorf("it is not taken over: %+v", verdict)
	}
}

func TestRequeueAfter(t *testing.T) {
	t.Parallel()
	data := fresh(t)
	for at, want := range map[time.Duration]time.Duration{
		0: time.Hour, 20*day - 10*time.Minute: 8*time.Minute + 20*time.Second,
	} {
		now := testNow.Add(at)
		if got := requeueAfter(inspect(data, now), now); got != want {
			t.Errorf("after %s: want %s, got %s", at, want, got)
		}
	}
}
