package rotation

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// TrustOf returns the CA certificates (PEM) with which clients verify chain. That is bundle or, when bundle is
// empty, the root of chain among the system roots of this machine.
func TrustOf(bundle, chain []byte, now time.Time) ([]byte, error) {
	if members, _ := certs.ParseBundle(bundle); len(members) > 0 {
		return certs.UnionBundle(bundle), nil
	}
	path, err := verifyChain(nil, chain, now)
	if err != nil {
		return nil, fmt.Errorf("verifying it with the system roots of this machine: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: path[len(path)-1].Raw}), nil
}

func verifyChain(bundle, chain []byte, now time.Time) ([]*x509.Certificate, error) {
	certificates, _ := certs.ParseBundle(chain)
	if len(certificates) == 0 {
		return nil, errors.New("there is no certificate")
	}
	options := x509.VerifyOptions{
		Intermediates: pool(certificates[1:]), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(bundle) > 0 {
		members, _ := certs.ParseBundle(bundle)
		options.Roots = pool(members)
	}
	paths, err := certificates[0].Verify(options)
	if err != nil {
		return nil, err
	}
	return paths[0], nil
}

func pool(certificates []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, cert := range certificates {
		p.AddCert(cert)
	}
	return p
}
