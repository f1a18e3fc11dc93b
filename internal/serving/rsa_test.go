package serving

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestRSAOnlyClients connects with a client that supports only RSA: it needs an external certificate with an RSA key.
func TestRSAOnlyClients(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	caKeyPEM := must.Get(ca.KeyPEM())(t)
	signer := must.Get(tls.X509KeyPair(ca.CertPEM(), caKeyPEM))(t)
	key := must.Get(rsa.GenerateKey(rand.Reader, 2048))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(
			7,
		),
		NotBefore:   noon.Add(-time.Hour),
		NotAfter:    noon.Add(90 * day),
		DNSNames:    []string{"proxy.example.com"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
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
			name: "connects to an RSA certificate", cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			key: pem.EncodeToMemory(
				&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)},
			), connects: true,
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
			server := tls.Server(
				serverEnd,
				&tls.Config{Certificates: []tls.Certificate{got.Certificate.Certificate}, MinVersion: tls.VersionTLS12},
			)
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
