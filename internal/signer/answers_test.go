package signer_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// respond fakes a signer: it changes the status of each approved CertificateSigningRequest until stop is called.
func (w *world) respond(t *testing.T, change func(*certificatesv1.CertificateSigningRequest)) (stop func()) {
	t.Helper()
	requests := w.admin.CertificatesV1().CertificateSigningRequests()
	events := must.Get(requests.Watch(t.Context(), metav1.ListOptions{}))(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range events.ResultChan() {
			request, ok := event.Object.(*certificatesv1.CertificateSigningRequest)
			if !ok || event.Type == "DELETED" || len(request.Status.Conditions) != 1 || len(request.Status.Certificate) > 0 {
				continue
			}
			change(request)
			_, _ = requests.UpdateStatus(t.Context(), request, metav1.UpdateOptions{}) // it may have been deleted
		}
	}()
	return sync.OnceFunc(func() { events.Stop(); <-ended })
}

// signAs signs the certificate request.
func signAs(
	t *testing.T,
	ca *certs.CA,
	request *certificatesv1.CertificateSigningRequest,
	life time.Duration,
) []byte {
	t.Helper()
	block, _ := pem.Decode(request.Spec.Request)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Error(err)
		return nil
	}
	keyPEM, err := ca.KeyPEM()
	if err != nil {
		t.Error(err)
		return nil
	}
	keyBlock, _ := pem.Decode(keyPEM)
	key, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		t.Error(err)
		return nil
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		Subject: asked.Subject, SerialNumber: ca.Certificate().SerialNumber, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(life), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}, ca.Certificate(), asked.PublicKey, key)
	if err != nil {
		t.Error(err)
		return nil
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// requestFor returns a certificate request in PEM.
func requestFor(t *testing.T, key *ecdsa.PrivateKey, username string, groups ...string) []byte {
	t.Helper()
	der := must.Get(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: username, Organization: groups},
	}, key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}
