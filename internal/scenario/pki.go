package scenario

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// CAFile is the name of the file with the CA certificate of a PKI.
const CAFile = "ca.pem"

// PKI fakes the PKI of an organization.
type PKI struct {
	dir string
	ca  *certs.CA
}

// NewPKI creates a CA and writes its certificate to CAFile in dir.
func NewPKI(dir, name string) (*PKI, error) {
	ca, err := certs.NewCA(name, time.Now(), 365*24*time.Hour)
	if err != nil {
		return nil, fmt.Errorf("making a CA: %w", err)
	}
	return &PKI{dir: dir, ca: ca}, os.WriteFile(filepath.Join(dir, CAFile), ca.CertPEM(), 0o600)
}

// Issue issues a certificate for host, a DNS name or IP address, and writes it and its key to NAME.pem and
// NAME-key.pem.
func (p *PKI) Issue(name, host string) (*x509.Certificate, error) {
	sans := certs.SANs{DNSNames: []string{host}}
	if address := net.ParseIP(host); address != nil {
		sans = certs.SANs{IPAddresses: []net.IP{address}}
	}
	pair, err := p.ca.IssueServing(sans, time.Now(), 90*24*time.Hour)
	if err != nil {
		return nil, fmt.Errorf("issuing a certificate: %w", err)
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(p.dir, name+".pem"), pair.CertPEM, 0o600),
		os.WriteFile(filepath.Join(p.dir, name+"-key.pem"), pair.KeyPEM, 0o600),
	)
	if err != nil {
		return nil, fmt.Errorf("writing a certificate: %w", err)
	}
	parsed, _ := certs.ParseBundle(pair.CertPEM)
	return parsed[0], nil
}

// Presents returns nil if address serves want to a client that trusts the PKI.
func (p *PKI) Presents(ctx context.Context, address string, want *x509.Certificate) error {
	roots := x509.NewCertPool()
	roots.AddCert(p.ca.Certificate())
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", address, err)
	}
	defer connection.Close()                                            //nolint:errcheck // only the handshake matters
	got := connection.(*tls.Conn).ConnectionState().PeerCertificates[0] // a tls.Dialer returns nothing else
	if !got.Equal(want) {
		return fmt.Errorf("%s presents the certificate with serial number %x, not %x",
			address, got.SerialNumber, want.SerialNumber)
	}
	return nil
}

// WaitPresented waits until address serves want, and returns how long that took.
func (p *PKI) WaitPresented(
	ctx context.Context, address string, want *x509.Certificate, limit time.Duration,
) (time.Duration, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := p.Presents(ctx, address, want)
		if err == nil {
			return time.Since(began), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("waiting for the new certificate: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
