package apiservice

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The keys of the Secret. The first four are those of Pinniped's, whose Secret is taken over as it is.
const (
	keyCACertificate     = "caCertificate"
	keyCAKey             = "caCertificatePrivateKey"
	keyCertificate       = "tlsCertificateChain"
	keyPrivateKey        = "tlsPrivateKey"
	keyNextCACertificate = "nextCACertificate" // announced, but nothing is signed by it yet
	keyNextCAKey         = "nextCACertificatePrivateKey"
	keyPreviousCAs       = "previousCACertificates" // still trusted
)

// state is what the Secret holds, as far as it is usable.
type state struct {
	exists   bool
	ca       *certs.CA
	caErr    error
	pair     *tls.Certificate // with its Leaf
	pairErr  error
	next     *certs.CA
	oldCAs   []*x509.Certificate // all trusted ones except those of ca and next
	certPEM  []byte
	keyPEM   []byte
	now      time.Time
	dnsNames []string
}

func read(data map[string][]byte, dnsNames []string, now time.Time) *state {
	s := &state{exists: len(data) > 0, now: now, dnsNames: dnsNames, certPEM: data[keyCertificate], keyPEM: data[keyPrivateKey]}
	s.ca, s.caErr = certs.LoadCA(data[keyCACertificate], data[keyCAKey])
	if pair, err := tls.X509KeyPair(s.certPEM, s.keyPEM); err != nil {
		s.pairErr = err
	} else {
		s.pair = &pair
	}
	if next, err := certs.LoadCA(data[keyNextCACertificate], data[keyNextCAKey]); err == nil && now.Before(next.Certificate().NotAfter) {
		s.next = next
	}
	s.oldCAs = trusted(data[keyPreviousCAs], now)
	if s.caErr != nil {
		// Its key may be lost, but what it has signed is being served until it is replaced.
		s.oldCAs = append(s.oldCAs, trusted(data[keyCACertificate], now)...)
	}
	return s
}

// trusted returns the CA certificates of a PEM bundle that have not expired, each once.
func trusted(bundle []byte, now time.Time) []*x509.Certificate {
	const limit = 8 // far more than renewals can leave behind
	var found []*x509.Certificate
	for len(found) < limit {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || !cert.IsCA || !now.Before(cert.NotAfter) || slices.ContainsFunc(found, cert.Equal) {
			continue
		}
		found = append(found, cert)
	}
	return found
}

// bundle is what the API server is to trust: the CA in use, the one to come, those that were.
func (s *state) bundle() []byte {
	var authorities []*x509.Certificate
	for _, ca := range []*certs.CA{s.ca, s.next} {
		if ca != nil {
			authorities = append(authorities, ca.Certificate())
		}
	}
	return encode(append(authorities, s.oldCAs...))
}

func encode(authorities []*x509.Certificate) []byte {
	var bundle []byte
	for i, cert := range authorities {
		if slices.ContainsFunc(authorities[:i], cert.Equal) {
			continue
		}
		bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return bundle
}

// verify returns why the API server would not accept the certificate.
func (s *state) verify() error {
	if s.pair == nil {
		return errors.New("there is no certificate")
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.ca.Certificate())
	_, err := s.pair.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: s.now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("verifying the certificate: %w", err)
	}
	return nil
}

// renewAt is when two thirds of a certificate's life are over.
func renewAt(cert *x509.Certificate) time.Time {
	return cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) / 3 * 2)
}
