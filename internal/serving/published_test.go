package serving

import (
	"encoding/base64"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestTextInABundleIsNotPublished puts a private key in bare base64 in front of the CA certificate in ca.crt.
func TestTextInABundleIsNotPublished(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	ca := must.Get(certs.NewCA("ca", now, 24*time.Hour*365))(t)
	pair := must.Get(ca.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, now, 24*time.Hour*90))(t)
	secret := &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		corev1.TLSCertKey: pair.CertPEM, corev1.TLSPrivateKeyKey: pair.KeyPEM,
		CACertKey: []byte(base64.StdEncoding.EncodeToString(pair.KeyPEM) + "\n" + string(ca.CertPEM())),
	}}
	got := External(ExternalInput{
		Secret:   secret,
		Spec:     configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "x"},
		Endpoint: "proxy.example.com",
		Now:      now,
	})
	if got.Certificate == nil {
		t.Fatalf("it is refused: %+v", got.Refusal)
	}
	if string(got.Certificate.Bundle) != string(ca.CertPEM()) {
		t.Errorf("what is published is %q", got.Certificate.Bundle)
	}
}
