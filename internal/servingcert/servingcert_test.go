package servingcert

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

func newCA(t *testing.T) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA("test CA", noon.Add(-day), 3650*day)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// issue makes a pair for proxy.example.com that was issued at and lives for ttl.
func issue(t *testing.T, ca *certs.CA, at time.Time, ttl time.Duration) *certs.KeyPair {
	t.Helper()
	pair, err := ca.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, at, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func TestExternal(t *testing.T) {
	t.Parallel()
	ca, stranger := newCA(t), newCA(t)
	good := issue(t, ca, noon, 90*day)
	other := issue(t, ca, noon, 90*day)
	endpoint := []certs.Name{{Value: "proxy.example.com", Source: "spec"}}
	elsewhere := []certs.Name{{Value: "other.example.com", Source: "spec"}}

	type in struct {
		missing      bool
		kind         corev1.SecretType
		cert, key    []byte
		ca           []byte // ca.crt
		spec         string // certificateAuthorityData
		names        []certs.Name
		verification configv1alpha1.TLSVerification
	}
	for _, test := range []struct {
		name    string
		in      in
		code    certs.Code // of the refusal
		pending bool
		warning certs.Code
		bundle  []byte
	}{
		{name: "serves a good one with the bundle of ca.crt", in: in{ca: ca.CertPEM()}, bundle: ca.CertPEM()},
		{name: "prefers the spec's bundle", in: in{ca: stranger.CertPEM(), spec: base64.StdEncoding.EncodeToString(ca.CertPEM())}, bundle: ca.CertPEM()},
		{name: "serves without any bundle", in: in{}},
		{name: "serves an Opaque Secret", in: in{kind: corev1.SecretTypeOpaque, ca: ca.CertPEM()}, bundle: ca.CertPEM()},
		{name: "waits for a missing Secret", in: in{missing: true}, code: certs.SecretNotFound, pending: true},
		{name: "waits for a missing key", in: in{key: []byte{}}, code: certs.SecretIncomplete, pending: true},
		{name: "refuses other types", in: in{kind: corev1.SecretTypeBasicAuth}, code: certs.SecretIncomplete},
		{name: "refuses another certificate's key", in: in{key: other.KeyPEM}, code: certs.KeyMismatch},
		{name: "refuses a bundle that does not verify it", in: in{ca: stranger.CertPEM()}, code: certs.BundleDoesNotVerify},
		{name: "refuses a bundle that is not base64", in: in{spec: "%%%"}, code: certs.NotACertificate},
		{name: "refuses a bundle with a private key", in: in{ca: append(ca.CertPEM(), good.KeyPEM...)}, code: certs.NotACertificate},
		{name: "warns of a name that is not covered", in: in{ca: ca.CertPEM(), names: elsewhere}, warning: certs.NameNotCovered, bundle: ca.CertPEM()},
		{name: "serves behind a load balancer whose own name it does not cover", in: in{
			ca: ca.CertPEM(), verification: configv1alpha1.VerificationEnforce,
			names: append([]certs.Name{{Value: "lb.cloud.example.com", Source: "Service", Advisory: true}}, endpoint...),
		}, warning: certs.NameNotCovered, bundle: ca.CertPEM()},
		{name: "refuses a name that is not covered when told to", in: in{ca: ca.CertPEM(), names: elsewhere, verification: configv1alpha1.VerificationEnforce}, code: certs.NameNotCovered},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.in.kind == "" {
				test.in.kind = corev1.SecretTypeTLS
			}
			if test.in.cert == nil {
				test.in.cert = good.CertPEM
			}
			if test.in.key == nil {
				test.in.key = good.KeyPEM
			}
			if test.in.names == nil {
				test.in.names = endpoint
			}
			name := types.NamespacedName{Namespace: "ns", Name: "cert"}
			secret := &corev1.Secret{Type: test.in.kind, Data: map[string][]byte{
				"tls.crt": test.in.cert, "tls.key": test.in.key, "ca.crt": test.in.ca,
			}}
			if test.in.missing {
				secret = nil
			}
			got := External(ExternalInput{
				Name: name, Secret: secret, Names: test.in.names, Now: noon,
				Spec: configv1alpha1.ImpersonationProxyTLSSpec{
					SecretName: name.Name, CertificateAuthorityData: test.in.spec, Verification: test.in.verification,
				},
			})
			if test.code != "" {
				if got.Material != nil || got.Refusal == nil {
					t.Fatalf("it was not refused")
				}
				if got.Refusal.Finding.Code != test.code || got.Refusal.Finding.Pending != test.pending {
					t.Errorf("refused as %s (pending %v), want %s (pending %v)", got.Refusal, got.Refusal.Finding.Pending, test.code, test.pending)
				}
				if !strings.HasPrefix(got.Refusal.Error(), string(test.code)+": ") || strings.Contains(got.Refusal.Error(), "PRIVATE") && strings.Contains(got.Refusal.Error(), "MII") {
					t.Errorf("the refusal reads %q", got.Refusal)
				}
				return
			}
			if got.Refusal != nil {
				t.Fatalf("refused: %v", got.Refusal)
			}
			if string(got.Material.Bundle) != string(test.bundle) || got.Material.Source != SourceExternal || got.Material.Secret != name {
				t.Errorf("bundle %q, source %s, Secret %s", got.Material.Bundle, got.Material.Source, got.Material.Secret)
			}
			warned := false
			for _, warning := range got.Warnings {
				warned = warned || warning.Code == test.warning
			}
			if test.warning != "" && !warned {
				t.Errorf("no warning %s among %v", test.warning, got.Warnings)
			}
		})
	}
}

func TestExternalDates(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		issued time.Time
		ttl    time.Duration
		code   certs.Code
	}{
		{"refuses an expired certificate", noon.Add(-20 * day), 10 * day, certs.Expired},
		{"refuses one that is not valid yet", noon.Add(day), 10 * day, certs.NotYetValid},
		{"serves one in the last tenth of its life", noon.Add(-95 * day), 100 * day, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			old, err := certs.NewCA("old CA", noon.Add(-200*day), 3650*day)
			if err != nil {
				t.Fatal(err)
			}
			pair := issue(t, old, test.issued, test.ttl)
			got := External(ExternalInput{
				Secret: &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": old.CertPEM()}},
				Now:    noon,
			})
			switch {
			case test.code == "" && got.Refusal != nil:
				t.Errorf("refused: %v", got.Refusal)
			case test.code != "" && (got.Refusal == nil || got.Refusal.Finding.Code != test.code):
				t.Errorf("got %v, want %s", got.Refusal, test.code)
			}
		})
	}
}

// generated is a generated CA and the content of its Secret.
func generated(t *testing.T) (*certs.CA, map[string][]byte) {
	t.Helper()
	ca, err := NewCA(noon)
	if err != nil {
		t.Fatal(err)
	}
	data, err := CAData(ca)
	if err != nil {
		t.Fatal(err)
	}
	return ca, data
}

func TestPlanCA(t *testing.T) {
	t.Parallel()
	_, data := generated(t)
	if _, plan := PlanCA(&corev1.Secret{Data: data}, noon.Add(50*365*day)); plan.Needed() {
		t.Errorf("a CA of fifty years is to be made anew: %v", plan)
	}
	for _, test := range []struct {
		name, want string
		secret     *corev1.Secret
		now        time.Time
	}{
		{"makes a missing one", "Missing", nil, noon},
		{"repairs a damaged one", "Damaged", &corev1.Secret{Data: map[string][]byte{"ca.crt": data["ca.crt"], "ca.key": []byte("x")}}, noon},
		{"replaces an expired one", "Expired", &corev1.Secret{Data: data}, noon.Add(101 * 365 * day)},
	} {
		if _, plan := PlanCA(test.secret, test.now); plan.Reason != test.want {
			t.Errorf("it %s: got %q, want %q", test.name, plan.Reason, test.want)
		}
	}
}

func TestPlanServing(t *testing.T) {
	t.Parallel()
	ca, _ := generated(t)
	names := certs.SANs{DNSNames: []string{"b.example", "a.example"}, IPAddresses: []net.IP{net.ParseIP("10.0.0.1")}}
	pair, err := ca.IssueServing(names, noon, GeneratedServingTTL)
	if err != nil {
		t.Fatal(err)
	}
	if life := pair.NotAfter.Sub(pair.NotBefore); life > 365*day {
		t.Errorf("it lives for %s, longer than a year", life)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "generated"},
		Data:       map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM},
	}
	same := certs.SANs{DNSNames: []string{"a.example", "b.example"}, IPAddresses: names.IPAddresses}
	material, plan := PlanServing(secret, ca, same, noon)
	if plan.Needed() || material == nil || material.Secret.Name != "generated" || string(material.Bundle) != string(ca.CertPEM()) {
		t.Fatalf("a good one is not kept: %v", plan)
	}
	damaged := secret.DeepCopy()
	damaged.Data["tls.key"] = nil
	for _, test := range []struct {
		name, want string
		secret     *corev1.Secret
		ca         *certs.CA
		names      certs.SANs
		now        time.Time
		served     bool
	}{
		{"makes a missing one", "Missing", nil, ca, names, noon, false},
		{"replaces a damaged one", "Damaged", damaged, ca, names, noon, false},
		{"replaces one of another CA", "NotVerified", secret, newCA(t), names, noon, false},
		{"replaces one for other names", "SANMismatch", secret, ca, certs.SANs{DNSNames: []string{"a.example"}}, noon, false},
		{"renews an old one, and serves it until then", "Expiring", secret, ca, names, noon.Add(250 * day), true},
		{"replaces an expired one", "NotVerified", secret, ca, names, noon.Add(366 * day), false},
	} {
		material, plan := PlanServing(test.secret, test.ca, test.names, test.now)
		if plan.Reason != test.want || (material != nil) != test.served {
			t.Errorf("it %s: got %q (served %v), want %q (served %v)", test.name, plan.Reason, material != nil, test.want, test.served)
		}
	}
}

func TestGenerated(t *testing.T) {
	t.Parallel()
	ca, data := generated(t)
	secretOf := func(pair *certs.KeyPair) *corev1.Secret {
		return &corev1.Secret{Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM}}
	}
	ours, theirs := secretOf(issue(t, ca, noon, day)), secretOf(issue(t, newCA(t), noon, day))
	if !Generated(ours, &corev1.Secret{Data: data}) {
		t.Error("what the CA issued does not count as generated")
	}
	if Generated(theirs, &corev1.Secret{Data: data}) || Generated(ours, &corev1.Secret{}) || Generated(&corev1.Secret{}, &corev1.Secret{Data: data}) {
		t.Error("what the CA did not issue counts as generated")
	}
}

func TestHolder(t *testing.T) {
	t.Parallel()
	var holder Holder
	if _, err := holder.GetCertificate(&tls.ClientHelloInfo{}); !errors.Is(err, ErrNoCertificate) {
		t.Fatalf("an empty holder: %v", err)
	}
	ca := newCA(t)
	pair := issue(t, ca, noon, day)
	certificate, err := keyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	if before := holder.Serve(&Material{Certificate: certificate}); before != nil {
		t.Errorf("before the first: %v", before)
	}
	got, err := holder.GetCertificate(nil)
	if err != nil || string(got.Certificate[0]) != string(certificate.Certificate[0]) {
		t.Errorf("got %v, %v", got, err)
	}
	holder.Withdraw()
	if holder.Current() != nil {
		t.Error("a withdrawn certificate is still there")
	}
	shared := types.NamespacedName{Namespace: "shared", Name: "wildcard"}
	for _, test := range []struct {
		name   string
		served Material
		want   bool
	}{
		{"revokes a delegated one", Material{Secret: shared, Delegated: true}, true},
		{"leaves one of another Secret", Material{Secret: types.NamespacedName{Namespace: "shared", Name: "other"}, Delegated: true}, false},
		{"leaves what is our own", Material{Secret: shared}, false},
	} {
		holder.Serve(&test.served)
		if got := holder.Revoke(shared); got != test.want || (holder.Current() == nil) != test.want {
			t.Errorf("it %s: revoked %v, what is left: %v", test.name, got, holder.Current())
		}
	}
	holder.Withdraw()
	if holder.Revoke(shared) {
		t.Error("it revoked nothing")
	}
}

// TestExternalTellsAll shows that a certificate with several faults is refused for the first, and that the others are told as well.
func TestExternalTellsAll(t *testing.T) {
	t.Parallel()
	ca, stranger := newCA(t), newCA(t)
	pair := issue(t, ca, noon.Add(-20*day), 10*day)
	got := External(ExternalInput{
		Secret: &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": stranger.CertPEM()}},
		Names:  []certs.Name{{Value: "other.example.com", Source: "spec"}}, Now: noon,
	})
	codes := func(findings []certs.Finding) (all []certs.Code) {
		for _, finding := range findings {
			all = append(all, finding.Code)
		}
		return all
	}
	if got.Material != nil || got.Refusal == nil || got.Refusal.Finding.Code != certs.Expired {
		t.Errorf("the outcome is %+v", got)
	}
	if diff := cmp.Diff([]certs.Code{certs.BundleDoesNotVerify}, codes(got.Further)); diff != "" {
		t.Errorf("further (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]certs.Code{certs.NameNotCovered}, codes(got.Warnings)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}
