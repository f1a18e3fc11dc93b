package serving

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

func newCA(t *testing.T) *certs.CA {
	t.Helper()
	return must.Get(certs.NewCA("test CA", noon.Add(-200*day), 3650*day))(t)
}

// issue returns a pair for proxy.example.com, issued at this time and valid for ttl.
func issue(t *testing.T, ca *certs.CA, at time.Time, ttl time.Duration) *certs.KeyPair {
	t.Helper()
	return must.Get(ca.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, at, ttl))(t)
}

func TestExternal(t *testing.T) {
	t.Parallel()
	ca, unrelated := newCA(t), newCA(t)
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
		from         *configv1alpha1.CertificateAuthorityDataSourceSpec
		source       *BundleSource
	}
	configMap := &configv1alpha1.CertificateAuthorityDataSourceSpec{
		Kind: configv1alpha1.SourceConfigMap, Name: "company-ca", Key: "ca.crt",
	}
	clusterTrustBundle := &configv1alpha1.CertificateAuthorityDataSourceSpec{
		Kind: configv1alpha1.SourceClusterTrustBundle, Name: "company-ca",
	}
	holding := func(key string, bundle []byte) *BundleSource {
		return &BundleSource{Data: map[string][]byte{key: bundle}}
	}
	dated := func(issued, ttl time.Duration) in {
		pair := issue(t, ca, noon.Add(issued), ttl)
		return in{cert: pair.CertPEM, key: pair.KeyPEM, ca: ca.CertPEM()}
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
		{
			name: "does not publish text in ca.crt, such as a private key in bare base64", bundle: ca.CertPEM(),
			in: in{ca: []byte(base64.StdEncoding.EncodeToString(good.KeyPEM) + "\n" + string(ca.CertPEM()))},
		},
		{name: "refuses an expired certificate", in: dated(-20*day, 10*day), code: certs.Expired},
		{name: "refuses one that is not valid yet", in: dated(day, 10*day), code: certs.NotYetValid},
		{
			name: "serves one in the last tenth of its life", in: dated(-95*day, 100*day), warning: certs.ExpiresSoon,
			bundle: ca.CertPEM(),
		},
		{
			name: "prefers the spec's bundle",
			in:   in{ca: unrelated.CertPEM(), spec: base64.StdEncoding.EncodeToString(ca.CertPEM())}, bundle: ca.CertPEM(),
		},
		{
			name: "takes the bundle from a ConfigMap",
			in:   in{ca: unrelated.CertPEM(), from: configMap, source: holding("ca.crt", ca.CertPEM())}, bundle: ca.CertPEM(),
		},
		{
			name: "takes the bundle from a ClusterTrustBundle",
			in:   in{from: clusterTrustBundle, source: holding("", ca.CertPEM())}, bundle: ca.CertPEM(),
		},
		{
			name: "waits for a ConfigMap", in: in{ca: ca.CertPEM(), from: configMap, source: &BundleSource{}},
			code: certs.BundleNotFound, pending: true,
		},
		{
			name: "waits for a key of a ConfigMap", in: in{ca: ca.CertPEM(), from: configMap, source: holding("x", ca.CertPEM())},
			code: certs.BundleNotFound, pending: true,
		},
		{
			name: "waits for a ConfigMap that cannot be read",
			in:   in{ca: ca.CertPEM(), from: configMap, source: &BundleSource{Err: errors.New("forbidden")}},
			code: certs.BundleNotFound, pending: true,
		},
		{
			name: "refuses a ConfigMap with another CA", in: in{from: configMap, source: holding("ca.crt", unrelated.CertPEM())},
			code: certs.BundleDoesNotVerify,
		},
		{
			name: "refuses a ConfigMap with a private key", in: in{from: configMap, source: holding("ca.crt", good.KeyPEM)},
			code: certs.NotACertificate,
		},
		{name: "serves without any bundle", in: in{}},
		{name: "serves an Opaque Secret", in: in{kind: corev1.SecretTypeOpaque, ca: ca.CertPEM()}, bundle: ca.CertPEM()},
		{name: "waits for a missing Secret", in: in{missing: true}, code: certs.SecretNotFound, pending: true},
		{name: "waits for a missing key", in: in{key: []byte{}}, code: certs.SecretIncomplete, pending: true},
		{name: "refuses other types", in: in{kind: corev1.SecretTypeBasicAuth}, code: certs.SecretIncomplete},
		{name: "refuses another certificate's key", in: in{key: other.KeyPEM}, code: certs.KeyMismatch},
		{name: "refuses a bundle that does not verify it", in: in{ca: unrelated.CertPEM()}, code: certs.BundleDoesNotVerify},
		{name: "refuses a bundle that is not base64", in: in{spec: "%%%"}, code: certs.NotACertificate},
		{
			name: "refuses a bundle with a private key", in: in{ca: append(ca.CertPEM(), good.KeyPEM...)},
			code: certs.NotACertificate,
		},
		{
			name: "warns of a name that is not covered", in: in{ca: ca.CertPEM(), names: elsewhere},
			warning: certs.NameNotCovered, bundle: ca.CertPEM(),
		},
		{name: "serves behind a load balancer whose own name it does not cover", in: in{
			ca: ca.CertPEM(), verification: configv1alpha1.VerificationEnforce,
			names: append([]certs.Name{{Value: "lb.cloud.example.com", Source: "Service", Advisory: true}}, endpoint...),
		}, bundle: ca.CertPEM()},
		{
			name: "refuses a name that is not covered when told to",
			in:   in{ca: ca.CertPEM(), names: elsewhere, verification: configv1alpha1.VerificationEnforce},
			code: certs.NameNotCovered,
		},
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
					CertificateAuthorityDataSource: test.in.from,
				},
				Source: test.in.source,
			})
			if test.code != "" {
				if got.Certificate != nil || got.Refusal == nil {
					t.Fatalf("it was not refused")
				}
				if got.Refusal.Finding.Code != test.code || got.Refusal.Finding.Pending != test.pending {
					t.Errorf("refused as %s (pending %v), want %s (pending %v)",
						got.Refusal, got.Refusal.Finding.Pending, test.code, test.pending)
				}
				if !strings.HasPrefix(got.Refusal.Error(), string(test.code)+": ") ||
					strings.Contains(got.Refusal.Error(), "PRIVATE") && strings.Contains(got.Refusal.Error(), "MII") {
					t.Errorf("the refusal reads %q", got.Refusal)
				}
				return
			}
			if got.Refusal != nil {
				t.Fatalf("refused: %v", got.Refusal)
			}
			if string(got.Certificate.Bundle) != string(test.bundle) || got.Certificate.Source != SourceExternal ||
				got.Certificate.Secret != name {
				t.Errorf("bundle %q, source %s, Secret %s", got.Certificate.Bundle, got.Certificate.Source, got.Certificate.Secret)
			}
			warned := false
			for _, warning := range got.Warnings {
				warned = warned || warning.Code == test.warning
			}
			if test.warning != "" && !warned {
				t.Errorf("no warning %s among %v", test.warning, got.Warnings)
			}
			if test.warning == "" && len(got.Warnings) > 0 {
				t.Errorf("warnings %v", got.Warnings)
			}
		})
	}
}

// generated returns a generated CA and the content of its Secret.
func generated(t *testing.T) (*certs.CA, map[string][]byte) {
	t.Helper()
	missing := issuedcert.Inspect(GeneratedCA(), nil, noon)
	made := must.Get(missing.Repair(missing.Verdict(), nil))(t)
	return made.CA, made.Data()
}

func reasonOf(state *issuedcert.State) issuedcert.Reason {
	if verdict := state.Verdict(); verdict != nil {
		return verdict.Reason
	}
	return ""
}

func TestGeneratedCA(t *testing.T) {
	t.Parallel()
	_, data := generated(t)
	for _, test := range []struct {
		name   string
		want   issuedcert.Reason
		secret *corev1.Secret
		now    time.Time
	}{
		{"keeps one of fifty years", "", &corev1.Secret{Data: data}, noon.Add(50 * 365 * day)},
		{"keeps one of ninety-nine years", "", &corev1.Secret{Data: data}, noon.Add(99 * 365 * day)},
		{"makes a missing one", issuedcert.Missing, nil, noon},
		{
			"repairs a damaged one", issuedcert.Damaged,
			&corev1.Secret{Data: map[string][]byte{"ca.crt": data["ca.crt"], "ca.key": []byte("x")}}, noon,
		},
		{"replaces an expired one", issuedcert.Expired, &corev1.Secret{Data: data}, noon.Add(101 * 365 * day)},
	} {
		if got := reasonOf(issuedcert.Inspect(GeneratedCA(), test.secret, test.now)); got != test.want {
			t.Errorf("it %s: got %q, want %q", test.name, got, test.want)
		}
		proxy := configv1alpha1.ImpersonationProxySpec{}
		bundle := must.Get(WouldGenerate(test.secret, "a.example.com", proxy, nil, test.now))(t).Bundle
		if known := string(bundle) == string(data["ca.crt"]); known != (test.want == "") {
			t.Errorf("it %s: the bundle that is published is %q", test.name, bundle)
		}
	}
}

func TestGeneratedServing(t *testing.T) {
	t.Parallel()
	ca, _ := generated(t)
	names := certs.SANs{DNSNames: []string{"b.example", "a.example"}, IPAddresses: []net.IP{net.ParseIP("10.0.0.1")}}
	pair := must.Get(ca.IssueServing(names, noon, GeneratedServingTTL))(t)
	if life := pair.NotAfter.Sub(pair.NotBefore); life > 365*day {
		t.Errorf("it lives for %s, longer than a year", life)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "generated"},
		Data:       map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM},
	}
	same := certs.SANs{DNSNames: []string{"a.example", "b.example"}, IPAddresses: names.IPAddresses}
	kept := issuedcert.InspectUnder(ca, GeneratedServing(same), secret, noon)
	if reason := reasonOf(kept); reason != "" {
		t.Fatalf("a good one is not kept: %v", reason)
	}
	name := types.NamespacedName{Namespace: "ns", Name: "generated"}
	if served := FromGenerated(kept, name); served.Secret != name || string(served.Bundle) != string(ca.CertPEM()) ||
		served.Source != SourceGenerated || !served.Certificate.Leaf.Equal(kept.Certificate.Leaf) {
		t.Errorf("what is served is %+v", served)
	}
	damaged := secret.DeepCopy()
	damaged.Data["tls.key"] = nil
	for _, test := range []struct {
		name   string
		want   issuedcert.Reason
		secret *corev1.Secret
		ca     *certs.CA
		names  certs.SANs
		now    time.Time
	}{
		{"makes a missing one", issuedcert.Missing, nil, ca, names, noon},
		{"replaces a damaged one", issuedcert.Damaged, damaged, ca, names, noon},
		{"replaces one of another CA", issuedcert.NotVerified, secret, newCA(t), names, noon},
		{
			"replaces one for other names", issuedcert.SANMismatch, secret, ca,
			certs.SANs{DNSNames: []string{"a.example"}},
			noon,
		},
		{"renews an old one", issuedcert.Expiring, secret, ca, names, noon.Add(250 * day)},
		{"replaces an expired one", issuedcert.Expired, secret, ca, names, noon.Add(366 * day)},
	} {
		state := issuedcert.InspectUnder(test.ca, GeneratedServing(test.names), test.secret, test.now)
		if reason := reasonOf(state); reason != test.want {
			t.Errorf("it %s: got %q, want %q", test.name, reason, test.want)
			continue
		}
		repaired, err := state.Repair(state.Verdict(), nil)
		if err != nil || repaired.Verdict() != nil || !repaired.SignedByCA() || len(repaired.Data()) != 2 {
			t.Errorf("it %s: the new one is %+v, %v", test.name, repaired, err)
		}
	}
}

func TestStillGenerated(t *testing.T) {
	t.Parallel()
	ca, data := generated(t)
	secretOf := func(pair *certs.KeyPair) *corev1.Secret {
		return &corev1.Secret{Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM}}
	}
	ours, theirs := secretOf(issue(t, ca, noon, day)), secretOf(issue(t, newCA(t), noon, day))
	caSecret := &corev1.Secret{Data: data}
	if served := StillGenerated(ours, caSecret); served == nil || string(served.Bundle) != string(ca.CertPEM()) {
		t.Errorf("what the CA issued does not count as generated: %+v", served)
	}
	if StillGenerated(theirs, caSecret) != nil || StillGenerated(ours, &corev1.Secret{}) != nil ||
		StillGenerated(&corev1.Secret{}, caSecret) != nil {
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
	certificate := must.Get(keyPair(pair.CertPEM, pair.KeyPEM))(t)
	if before := holder.Serve(&Certificate{Certificate: certificate}); before != nil {
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
		served Certificate
		want   bool
	}{
		{"revokes a delegated one", Certificate{Secret: shared, Delegated: true}, true},
		{
			"leaves one of another Secret",
			Certificate{Secret: types.NamespacedName{Namespace: "shared", Name: "other"}, Delegated: true},
			false,
		},
		{"leaves what is our own", Certificate{Secret: shared}, false},
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

// TestExternalReportsAll shows that a certificate with several errors is refused for the first, and that the others are
// reported as well.
func TestExternalReportsAll(t *testing.T) {
	t.Parallel()
	ca, unrelated := newCA(t), newCA(t)
	pair, other := issue(t, ca, noon, 10*day), issue(t, ca, noon, 10*day)
	got := External(ExternalInput{
		Secret: &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{
			"tls.crt": pair.CertPEM, "tls.key": other.KeyPEM, "ca.crt": unrelated.CertPEM(),
		}},
		Names: []certs.Name{{Value: "other.example.com", Source: "spec"}}, Now: noon,
	})
	codes := func(findings []certs.Finding) (all []certs.Code) {
		for _, finding := range findings {
			all = append(all, finding.Code)
		}
		return all
	}
	if got.Certificate != nil || got.Refusal == nil || got.Refusal.Finding.Code != certs.KeyMismatch {
		t.Errorf("the outcome is %+v", got)
	}
	if diff := cmp.Diff([]certs.Code{certs.BundleDoesNotVerify}, codes(got.Further)); diff != "" {
		t.Errorf("further (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]certs.Code{certs.NameNotCovered}, codes(got.Warnings)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// TestWhatCanBeAllowedIsServed keeps the CLI's `--allow` in step with the agent: the CLI offers a code if and only if
// the agent can be configured to serve such a certificate.
func TestWhatCanBeAllowedIsServed(t *testing.T) {
	t.Parallel()
	for _, code := range certs.Codes() {
		if e, _ := certs.Explain(code); e.Severity != certs.SeverityError {
			continue
		}
		// The agent does not know which CA bundle clients had before, so it never reports OldClientsBreak.
		serves := code == certs.OldClientsBreak || outcomeOf(code, configv1alpha1.VerificationWarn, false) != refused
		if serves != certs.Allowable(code) {
			t.Errorf("%s: the agent serves it: %v; --allow takes it: %v", code, serves, certs.Allowable(code))
		}
	}
}

func TestLastKnownGood(t *testing.T) {
	t.Parallel()
	ca := must.Get(certs.NewCA("x", time.Now(), time.Hour))(t)
	pair := must.Get(ca.IssueServing(certs.SANs{DNSNames: []string{"a.example"}}, time.Now(), time.Hour))(t)
	certificate := must.Get(keyPair(append(pair.CertPEM, ca.CertPEM()...), pair.KeyPEM))(t)
	name := types.NamespacedName{Namespace: "ns", Name: "theirs"}
	served := &Certificate{Certificate: certificate, Source: SourceExternal, Secret: name, Bundle: ca.CertPEM()}
	data := must.Get(LastKnownGoodData(served))(t)
	if again, err := LastKnownGoodData(served); err != nil || !SameData(&corev1.Secret{Data: data}, again) {
		t.Errorf("the same certificate is another copy each time (%v)", err)
	}
	if SameData(nil, data) {
		t.Error("no Secret has the data")
	}
	kept := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "kept"}, Data: data}
	got := must.Get(LastKnownGood(kept))(t)
	diff := cmp.Diff(served.Certificate.Certificate, got.Certificate.Certificate)
	if diff != "" || got.SHA256() != served.SHA256() || got.Secret != served.Secret ||
		got.Source != SourceExternal || string(got.Bundle) != string(served.Bundle) {
		t.Errorf("it came back as %+v %s", got, diff)
	}

	for name, test := range map[string]struct {
		m    *Certificate
		want bool
	}{
		"an external one":    {served, true},
		"a delegated one":    {&Certificate{Source: SourceExternal, Delegated: true}, false},
		"a generated one":    {&Certificate{Source: SourceGenerated}, false},
		"nothing in service": {nil, false},
	} {
		if got := KeepsLastKnownGood(test.m); got != test.want {
			t.Errorf("%s is kept: %v", name, got)
		}
	}
	for name, secret := range map[string]*corev1.Secret{
		"of somebody else": {Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM}},
		"damaged": {
			Data: map[string][]byte{"tls.crt": []byte("x"), "tls.key": pair.KeyPEM, lastKnownGoodNameKey: []byte("s")},
		},
	} {
		if got, err := LastKnownGood(secret); err == nil {
			t.Errorf("a copy that is %s is used: %+v", name, got)
		}
	}
}

// TestRSAOnlyClients connects with a client that supports only RSA: it needs an external certificate with an RSA key.
func TestRSAOnlyClients(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	caKeyPEM := must.Get(ca.KeyPEM())(t)
	signer := must.Get(tls.X509KeyPair(ca.CertPEM(), caKeyPEM))(t)
	key := must.Get(rsa.GenerateKey(rand.Reader, 2048))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(90 * day),
		DNSNames: []string{"proxy.example.com"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, ca.Certificate(), key.Public(), signer.PrivateKey))(t)
	ecdsa := issue(t, ca, noon, 90*day)
	for _, test := range []struct {
		name      string
		cert, key []byte
		connects  bool
	}{
		{
			name: "connects to an RSA certificate", connects: true,
			cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			key:  pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		},
		{name: "does not connect to an ECDSA certificate", cert: ecdsa.CertPEM, key: ecdsa.KeyPEM},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := External(ExternalInput{
				Secret: &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{
					corev1.TLSCertKey: test.cert, corev1.TLSPrivateKeyKey: test.key, CACertKey: ca.CertPEM(),
				}},
				Spec:  configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "tls"},
				Names: []certs.Name{{Value: "proxy.example.com", Source: "spec"}}, Now: noon,
			})
			if got.Refusal != nil || len(got.Warnings) > 0 {
				t.Fatalf("got %+v", got)
			}
			roots := x509.NewCertPool()
			roots.AddCert(ca.Certificate())
			serverEnd, clientEnd := net.Pipe()
			server := tls.Server(serverEnd, &tls.Config{
				Certificates: []tls.Certificate{got.Certificate.Certificate}, MinVersion: tls.VersionTLS12,
			})
			go func() {
				_ = server.HandshakeContext(context.Background()) // the client returns the error
				_ = serverEnd.Close()
			}()
			client := tls.Client(clientEnd, &tls.Config{
				RootCAs: roots, ServerName: "proxy.example.com", Time: func() time.Time { return noon },
				MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12,
				CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256},
			})
			if err := client.HandshakeContext(t.Context()); (err == nil) != test.connects {
				t.Errorf("got %v", err)
			}
			_ = clientEnd.Close()
		})
	}
}

func TestClientNames(t *testing.T) {
	t.Parallel()
	const (
		ipSource      = "spec.impersonationProxy.service.loadBalancerIP"
		ingressSource = "Service ns/s status.loadBalancer.ingress"
	)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
		Spec:       corev1.ServiceSpec{ClusterIPs: []string{"10.0.0.1", "fd00::1"}},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{Hostname: "lb.example.com"}, {IP: "192.0.2.1"},
		}}},
	}
	named := func(advisory bool, source string, values ...string) (names []certs.Name) {
		for _, value := range values {
			names = append(names, certs.Name{Value: value, Source: source, Advisory: advisory})
		}
		return names
	}
	ingress := []string{"lb.example.com", "192.0.2.1"}
	for _, test := range []struct {
		name     string
		kind     configv1alpha1.ImpersonationProxyServiceType
		ip       string
		endpoint string
		service  *corev1.Service
		want     []certs.Name
	}{
		{name: "finds none without a Service", kind: "LoadBalancer"},
		{name: "takes every address of the load balancer", service: service, want: named(false, ingressSource, ingress...)},
		{
			name: "only warns of the load balancer's addresses behind an endpoint", kind: "LoadBalancer",
			endpoint: "a.example", service: service, want: named(true, ingressSource, ingress...),
		},
		{
			name: "only warns of the load balancer IP behind an endpoint, too", kind: "LoadBalancer", ip: "192.0.2.1",
			endpoint: "a.example", service: service,
			want: append(named(true, ipSource, "192.0.2.1"), named(true, ingressSource, "lb.example.com")...),
		},
		{
			name: "takes cluster IPs without an endpoint", kind: "ClusterIP", service: service,
			want: named(false, "Service ns/s spec.clusterIPs", "10.0.0.1", "fd00::1"),
		},
		{name: "leaves cluster IPs out behind an endpoint", kind: "ClusterIP", endpoint: "a.example", service: service},
		{
			name: "takes the load balancer IP whatever the type is", kind: "None", ip: "192.0.2.9",
			want: named(false, ipSource, "192.0.2.9"),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := ClientNames(configv1alpha1.ImpersonationProxySpec{
				ExternalEndpoint: test.endpoint,
				Service:          configv1alpha1.ImpersonationProxyServiceSpec{Type: test.kind, LoadBalancerIP: test.ip},
			}, test.service)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
