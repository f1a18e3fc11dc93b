package webhookauthenticator

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

var testNow = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func newBundle(t *testing.T) []byte {
	t.Helper()
	ca, err := certs.NewCA("webhook CA", testNow, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca.CertPEM()
}

func inline(bundle string) *authenticationv1alpha1.TLSSpec {
	return &authenticationv1alpha1.TLSSpec{CertificateAuthorityData: base64.StdEncoding.EncodeToString([]byte(bundle))}
}

func fromSource(kind authenticationv1alpha1.CertificateAuthorityDataSourceKind) *authenticationv1alpha1.TLSSpec {
	return &authenticationv1alpha1.TLSSpec{
		CertificateAuthorityDataSource: &authenticationv1alpha1.CertificateAuthorityDataSourceSpec{Kind: kind, Name: "n", Key: "k"},
	}
}

func TestCheckTLS(t *testing.T) {
	t.Parallel()
	bundle := string(newBundle(t))
	name := types.NamespacedName{Namespace: "ns", Name: "n"}
	both := inline(bundle)
	both.CertificateAuthorityDataSource = fromSource("Secret").CertificateAuthorityDataSource
	const source = "spec.tls.certificateAuthorityDataSource is invalid: "
	const begin = `(PEM certificates must begin with "-----BEGIN CERTIFICATE-----")`
	for _, test := range []struct {
		name    string
		spec    *authenticationv1alpha1.TLSSpec
		from    *origin
		bundle  string
		message string
	}{
		{"takes the system's roots without a spec", nil, nil, "", messageTLSSystemRoots},
		{"takes them with an empty spec", &authenticationv1alpha1.TLSSpec{}, nil, "", messageTLSSystemRoots},
		{"takes an inline bundle", inline(bundle), nil, bundle, "spec.tls is valid: using configured CA bundle"},
		{"takes that of a Secret", fromSource("Secret"), &origin{name: name, found: true, secretType: "Opaque", hasKey: true, value: []byte(bundle)}, bundle, "spec.tls is valid: using configured CA bundle"},
		{"takes that of a TLS Secret", fromSource("Secret"), &origin{name: name, found: true, secretType: corev1.SecretTypeTLS, hasKey: true, value: []byte(bundle)}, bundle, "spec.tls is valid: using configured CA bundle"},
		{"takes that of a ConfigMap", fromSource("ConfigMap"), &origin{name: name, found: true, hasKey: true, value: []byte(bundle)}, bundle, "spec.tls is valid: using configured CA bundle"},
		{"refuses two sources", both, nil, "", "spec.tls is invalid: both tls.certificateAuthorityDataSource and tls.certificateAuthorityData provided"},
		{"refuses what is not base64", &authenticationv1alpha1.TLSSpec{CertificateAuthorityData: "x!"}, nil, "", "spec.tls.certificateAuthorityData is invalid: illegal base64 data at input byte 1"},
		{"refuses what is not PEM", &authenticationv1alpha1.TLSSpec{CertificateAuthorityData: "bm90IFBFTQ=="}, nil, "", "spec.tls.certificateAuthorityData is invalid: no base64-encoded PEM certificates found in 12 bytes of data " + begin},
		{"refuses a missing Secret", fromSource("Secret"), &origin{name: name}, "", source + `failed to get secret "ns/n": secret "n" not found`},
		{"refuses a missing ConfigMap", fromSource("ConfigMap"), &origin{name: name}, "", source + `failed to get configmap "ns/n": configmap "n" not found`},
		{"refuses a Secret of another type", fromSource("Secret"), &origin{name: name, found: true, secretType: "kubernetes.io/dockercfg", hasKey: true, value: []byte(bundle)}, "", source + `secret "ns/n" of type "kubernetes.io/dockercfg" cannot be used as a certificate authority data source`},
		{"refuses a missing key", fromSource("Secret"), &origin{name: name, found: true, secretType: "Opaque"}, "", source + `key "k" not found in secret "ns/n"`},
		{"refuses an empty value", fromSource("ConfigMap"), &origin{name: name, found: true, hasKey: true}, "", source + `key "k" has empty value in configmap "ns/n"`},
		{"refuses a private key", fromSource("Secret"), &origin{name: name, found: true, secretType: "Opaque", hasKey: true, value: []byte("secret")}, "", source + `key "k" with 6 bytes of data in secret "ns/n" is not a PEM-encoded certificate ` + begin},
		{"refuses another kind", fromSource("Pod"), &origin{name: name}, "", source + "unsupported CA bundle source kind: Pod"},
		{"refuses too much", inline(strings.Repeat(bundle, 1+maxBundleSize/len(bundle))), nil, "", "no base64-encoded PEM certificates found"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, condition := checkTLS(test.spec, test.from)
			if string(got) != test.bundle || !strings.Contains(condition.Message, test.message) {
				t.Errorf("want %q, got %q", test.message, condition.Message)
			}
			want := good(typeTLS, condition.Message)
			if !strings.HasPrefix(test.message, "spec.tls is valid") {
				want = bad("TLSConfigurationValid", "InvalidTLSConfig", condition.Message)
			}
			if diff := cmp.Diff(want, condition); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckEndpoint(t *testing.T) {
	t.Parallel()
	proxy := func(r *http.Request) (*url.URL, error) {
		switch r.URL.Host {
		case "proxied.example.com":
			return &url.URL{Scheme: "http", Host: "proxy"}, nil
		case "bad.example.com":
			return nil, errors.New("bad proxy")
		default:
			return nil, nil
		}
	}
	for _, test := range []struct {
		endpoint, reason, message, address string
		proxied                            bool
	}{
		{endpoint: "https://x.example.com/a?b=c", reason: "Success", message: "spec.endpoint is a valid URL", address: "x.example.com:443"},
		{endpoint: "https://x.example.com:8443", reason: "Success", message: "spec.endpoint is a valid URL", address: "x.example.com:8443"},
		{endpoint: "https://[fd00::1]", reason: "Success", message: "spec.endpoint is a valid URL", address: "[fd00::1]:443"},
		{endpoint: "https://proxied.example.com", reason: "Success", message: "spec.endpoint is a valid URL", address: "proxied.example.com:443", proxied: true},
		{endpoint: "https://bad.example.com", reason: "InvalidEndpointCannotDetermineProxy", message: "unable to determine"},
		{endpoint: "http://x.example.com", reason: "InvalidEndpointURLScheme", message: "spec.endpoint URL http://x.example.com has invalid scheme, require 'https'"},
		{endpoint: "https://ann:secret@[::1", reason: "InvalidEndpointURL", message: "spec.endpoint URL is invalid: missing ']' in host"},
		{endpoint: "https://", reason: "InvalidEndpointURL", message: "it has no host"},
		{endpoint: "https://:443", reason: "InvalidEndpointURL", message: "it has no host"},
	} {
		t.Run(test.endpoint, func(t *testing.T) {
			t.Parallel()
			parsed, proxied, condition := checkEndpoint(test.endpoint, proxy)
			if condition.Reason != test.reason || !strings.Contains(condition.Message, test.message) || strings.Contains(condition.Message, "secret") || proxied != test.proxied {
				t.Errorf("got %+v, proxied %v", condition, proxied)
			}
			if (parsed != nil) != (test.address != "") {
				t.Fatalf("got URL %v", parsed)
			}
			if parsed != nil && address(parsed) != test.address {
				t.Errorf("want address %q, got %q", test.address, address(parsed))
			}
		})
	}
}

// dialer is the network as a test has it.
type dialer struct {
	err   error
	calls int
}

func (d *dialer) dial(context.Context, string, *x509.CertPool) error { d.calls++; return d.err }

// summary is what matters of conditions: the reasons, in order.
func summary(f finding) string {
	var reasons []string
	for _, condition := range f.conditions {
		reasons = append(reasons, condition.Reason)
	}
	return fmt.Sprintf("%s %v usable=%v", phase(f.conditions), reasons, f.usable)
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	const (
		ready = "Ready [Success Success Success Success Success] usable=true"
		away  = "Error [Success Success UnableToDialServer UnableToValidate NotReady] usable=false"
		lost  = "Error [Success Success UnableToDialServer Success NotReady] usable=true"
	)
	clock := clocktesting.NewFakeClock(testNow)
	network := &dialer{}
	r := &Reconciler{Dial: network.dial, Clock: clock}
	spec := &authenticationv1alpha1.WebhookAuthenticatorSpec{Endpoint: "https://x.example.com", TLS: inline(string(newBundle(t)))}
	other := &authenticationv1alpha1.WebhookAuthenticatorSpec{Endpoint: "https://x.example.com", TLS: inline(string(newBundle(t)))}
	invalid := &authenticationv1alpha1.WebhookAuthenticatorSpec{Endpoint: "http://x.example.com"}
	refused := errors.New("connection refused")
	var k *known
	for _, step := range []struct {
		name    string
		wait    time.Duration
		spec    *authenticationv1alpha1.WebhookAuthenticatorSpec
		network error
		want    string
		dials   int
		again   time.Duration
		same    bool // the authenticator and its connections are kept
	}{
		{"is not usable before it ever answered", 0, spec, refused, away, 1, time.Second, false},
		{"is not dialed before its time", 500 * time.Millisecond, spec, nil, away, 0, 500 * time.Millisecond, true},
		{"waits longer after each failure", time.Second, spec, refused, away, 1, 2 * time.Second, true},
		{"is usable when it answers", 2 * time.Second, spec, nil, ready, 1, probeEvery, true},
		{"is left alone then", time.Minute, spec, refused, ready, 0, time.Minute, true},
		{"stays usable when it is away, and that is said", time.Minute, spec, refused, lost, 1, time.Second, true},
		{"waits half a minute at most", time.Hour, spec, refused, lost, 1, 2 * time.Second, true},
		{"is ready when it is back", time.Hour, spec, nil, ready, 1, probeEvery, true},
		{"is another one with another CA bundle", 0, other, refused, away, 1, time.Second, false},
		{"is another one again", 0, spec, nil, ready, 1, probeEvery, false},
		{"is nothing with a bad spec", 0, invalid, nil, "Error [Success InvalidEndpointURLScheme UnableToValidate UnableToValidate NotReady] usable=false", 0, probeEvery, false},
	} {
		clock.Step(step.wait)
		network.err, network.calls = step.network, 0
		found := r.evaluate(t.Context(), step.spec, nil, k)
		if diff := cmp.Diff(step.want, summary(found)); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", step.name, diff)
		}
		if network.calls != step.dials {
			t.Errorf("%s: want %d probes, got %d", step.name, step.dials, network.calls)
		}
		if again := found.requeueAfter.Truncate(10 * time.Millisecond); again != step.again {
			t.Errorf("%s: want the next probe after %s, got %s", step.name, step.again, again)
		}
		if same := k != nil && found.known != nil && k.webhook == found.known.webhook; same != step.same {
			t.Errorf("%s: same authenticator: want %v, got %v", step.name, step.same, same)
		}
		k = found.known
	}

	t.Run("does not dial where a proxy stands before it", func(t *testing.T) {
		dials := &dialer{err: refused}
		r := &Reconciler{Dial: dials.dial, Clock: clock, Proxy: func(*http.Request) (*url.URL, error) { return &url.URL{Host: "proxy"}, nil }}
		found := r.evaluate(t.Context(), spec, nil, nil)
		if diff := cmp.Diff(ready, summary(found)); diff != "" || dials.calls != 0 {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if message := found.conditions[2].Message; message != "skipped dialing connection probe because HTTPS_PROXY is configured for use with the specified host" {
			t.Errorf("got %q", message)
		}
	})
	t.Run("waits half a minute at most after many failures", func(t *testing.T) {
		r := &Reconciler{Dial: (&dialer{err: refused}).dial, Clock: clock}
		var k *known
		for range 100 {
			k = r.evaluate(t.Context(), spec, nil, k).known
			clock.SetTime(k.probeAt)
		}
		if found := r.evaluate(t.Context(), spec, nil, k); found.requeueAfter.Truncate(time.Second) != probeLate {
			t.Errorf("got %s", found.requeueAfter)
		}
	})
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	refusal := func(port int) error {
		return &net.OpError{
			Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port},
			Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443}, Err: os.NewSyscallError("read", errors.New("connection reset")),
		}
	}
	if one, other := describe(refusal(1)), describe(refusal(2)); one != other || one != "read tcp 127.0.0.1:443: read: connection reset" {
		t.Errorf("got %q and %q", one, other)
	}
	ca, err := certs.NewCA("x", testNow, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	late := func(after time.Duration) error {
		_, err := ca.Certificate().Verify(x509.VerifyOptions{CurrentTime: testNow.Add(after), Roots: x509.NewCertPool()})
		return err
	}
	if one, other := describe(late(2*time.Hour)), describe(late(3*time.Hour)); one != other || one != "the server's certificate is valid from 2026-11-21T11:55:00Z to 2026-11-21T13:00:00Z" {
		t.Errorf("got %q and %q", one, other)
	}
	if text := describe(errors.New(strings.Repeat("x", 5000))); len(text) > 1100 {
		t.Errorf("got %d bytes", len(text))
	}
}

func TestDesiredStatus(t *testing.T) {
	t.Parallel()
	then := metav1.NewTime(testNow.Add(-time.Hour))
	object := &authenticationv1alpha1.WebhookAuthenticator{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
	object.Status.Conditions = []metav1.Condition{
		{Type: typeTLS, Status: metav1.ConditionTrue, LastTransitionTime: then},
		{Type: typeReady, Status: metav1.ConditionTrue, LastTransitionTime: then},
	}
	got := desiredStatus(object, summed([]metav1.Condition{good(typeTLS, "fine"), bad(typeEndpoint, reasonEndpoint, "bad")}), testNow)
	now := metav1.NewTime(testNow)
	want := authenticationv1alpha1.WebhookAuthenticatorStatus{Phase: "Error", Conditions: []metav1.Condition{
		{Type: "EndpointURLValid", Status: "False", Reason: "InvalidEndpointURL", Message: "bad", ObservedGeneration: 3, LastTransitionTime: now},
		{Type: "Ready", Status: "False", Reason: "NotReady", Message: "the WebhookAuthenticator is not ready: see other conditions for details", ObservedGeneration: 3, LastTransitionTime: now},
		{Type: "TLSConfigurationValid", Status: "True", Reason: "Success", Message: "fine", ObservedGeneration: 3, LastTransitionTime: then},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
