package authenticators

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

var testNow = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func newBundle(t *testing.T) []byte {
	t.Helper()
	return must.Get(certs.NewCA("webhook CA", testNow, time.Hour))(t).CertPEM()
}

func inline(bundle string) *authenticationv1alpha1.TLSSpec {
	return &authenticationv1alpha1.TLSSpec{CertificateAuthorityData: base64.StdEncoding.EncodeToString([]byte(bundle))}
}

func fromSource(kind authenticationv1alpha1.CertificateAuthorityDataSourceKind) *authenticationv1alpha1.TLSSpec {
	return &authenticationv1alpha1.TLSSpec{
		CertificateAuthorityDataSource: &authenticationv1alpha1.CertificateAuthorityDataSourceSpec{
			Kind: kind, Name: "n", Key: "k",
		},
	}
}

func TestCheckTLS(t *testing.T) {
	t.Parallel()
	bundle := string(newBundle(t))
	name := types.NamespacedName{Namespace: "ns", Name: "n"}
	both := inline(bundle)
	both.CertificateAuthorityDataSource = fromSource("Secret").CertificateAuthorityDataSource
	const source = "spec.tls.certificateAuthorityDataSource is invalid: "
	const configured = "spec.tls is valid: using configured CA bundle"
	secret := func(kind corev1.SecretType, value string) *origin {
		return &origin{name: name, found: true, secretType: kind, hasKey: true, value: []byte(value)}
	}
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
		{"takes an inline bundle", inline(bundle), nil, bundle, configured},
		{
			"takes that of a Secret", fromSource("Secret"),
			secret("Opaque", bundle), bundle,
			configured,
		},
		{
			"takes that of a TLS Secret", fromSource("Secret"),
			secret(corev1.SecretTypeTLS, bundle), bundle,
			configured,
		},
		{
			"takes that of a ConfigMap", fromSource("ConfigMap"),
			&origin{name: name, found: true, hasKey: true, value: []byte(bundle)}, bundle,
			configured,
		},
		{"refuses two sources", both, nil, "", "spec.tls is invalid: both tls.certificateAuthorityDataSource and " +
			"tls.certificateAuthorityData provided"},
		{
			"refuses what is not base64", &authenticationv1alpha1.TLSSpec{CertificateAuthorityData: "x!"}, nil, "",
			"spec.tls.certificateAuthorityData is invalid: illegal base64 data at input byte 1",
		},
		{
			"refuses what is not PEM", &authenticationv1alpha1.TLSSpec{CertificateAuthorityData: "bm90IFBFTQ=="}, nil, "",
			"spec.tls.certificateAuthorityData is invalid: no base64-encoded PEM certificates found in 12 bytes of data " + begin,
		},
		{
			"refuses a missing Secret", fromSource("Secret"), &origin{name: name}, "",
			source + `failed to get secret "ns/n": secret "n" not found`,
		},
		{
			"refuses a missing ConfigMap", fromSource("ConfigMap"), &origin{name: name}, "",
			source + `failed to get configmap "ns/n": configmap "n" not found`,
		},
		{
			"refuses a Secret of another type", fromSource("Secret"),
			secret("kubernetes.io/dockercfg", bundle), "",
			source + `secret "ns/n" of type "kubernetes.io/dockercfg" cannot be used as a certificate authority data source`,
		},
		{
			"refuses a missing key", fromSource("Secret"), &origin{name: name, found: true, secretType: "Opaque"}, "",
			source + `key "k" not found in secret "ns/n"`,
		},
		{
			"refuses an empty value", fromSource("ConfigMap"), &origin{name: name, found: true, hasKey: true}, "",
			source + `key "k" has empty value in configmap "ns/n"`,
		},
		{
			"refuses a private key", fromSource("Secret"),
			secret("Opaque", "secret"), "",
			source + `key "k" with 6 bytes of data in secret "ns/n" is not a PEM-encoded certificate ` + begin,
		},
		{
			"refuses another kind", fromSource("Pod"), &origin{name: name}, "",
			source + "unsupported CA bundle source kind: Pod",
		},
		{"refuses too much", inline(strings.Repeat(bundle, 1+maxBundleSize/len(bundle))), nil, "", "no base64-encoded PEM " +
			"certificates found"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, condition := checkTLS(test.spec, test.from)
			if string(got) != test.bundle || !strings.Contains(condition.Message, test.message) {
				t.Errorf("want %q, got %q", test.message, condition.Message)
			}
			want := Good(TypeTLS, condition.Message)
			if !strings.HasPrefix(test.message, "spec.tls is valid") {
				want = Bad("TLSConfigurationValid", "InvalidTLSConfig", condition.Message)
			}
			if diff := cmp.Diff(want, condition); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	refusal := func(port int) error {
		at := func(port int) net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port} }
		err := os.NewSyscallError("read", errors.New("connection reset"))
		return &net.OpError{Op: "read", Net: "tcp", Source: at(port), Addr: at(443), Err: err}
	}
	if one, other := Describe(refusal(1)), Describe(refusal(2)); one != other ||
		one != "read tcp 127.0.0.1:443: read: connection reset" {
		t.Errorf("got %q and %q", one, other)
	}
	ca := must.Get(certs.NewCA("x", testNow, time.Hour))(t)
	late := func(after time.Duration) error {
		_, err := ca.Certificate().Verify(x509.VerifyOptions{CurrentTime: testNow.Add(after), Roots: x509.NewCertPool()})
		return err
	}
	if one, other := Describe(late(2*time.Hour)), Describe(late(3*time.Hour)); one != other ||
		one != "the server's certificate is valid from 2026-11-21T11:55:00Z to 2026-11-21T13:00:00Z" {
		t.Errorf("got %q and %q", one, other)
	}
	if text := Describe(errors.New(strings.Repeat("x", 5000))); len(text) > 1100 {
		t.Errorf("got %d bytes", len(text))
	}
}

func TestDesiredStatus(t *testing.T) {
	t.Parallel()
	then := metav1.NewTime(testNow.Add(-time.Hour))
	before := Status{Conditions: []metav1.Condition{
		{Type: TypeTLS, Status: metav1.ConditionTrue, LastTransitionTime: then},
		{Type: TypeReady, Status: metav1.ConditionTrue, LastTransitionTime: then},
	}}
	found := []metav1.Condition{Good(TypeTLS, "fine"), Bad("EndpointURLValid", "InvalidEndpointURL", "bad")}
	got := desiredStatus(before, 3, summed("WebhookAuthenticator", found), testNow)
	now := metav1.NewTime(testNow)
	condition := func(kind, reason, message string, status metav1.ConditionStatus, since metav1.Time) metav1.Condition {
		return metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: 3, LastTransitionTime: since,
		}
	}
	want := Status{Phase: "Error", Conditions: []metav1.Condition{
		condition("EndpointURLValid", "InvalidEndpointURL", "bad", "False", now),
		condition(
			"Ready",
			"NotReady",
			"the WebhookAuthenticator is not ready: see other conditions for details",
			"False",
			now,
		),
		condition("TLSConfigurationValid", "Success", "fine", "True", then),
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
