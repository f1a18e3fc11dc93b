package scenario

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// CAFile is the file with the CA of a PKI, in its folder.
const CAFile = "ca.pem"

// PKI stands for the place where an organization's certificates come from.
type PKI struct {
	dir string
	ca  *certs.CA
}

// NewPKI makes a CA, and writes its certificate to CAFile in dir.
func NewPKI(dir, name string) (*PKI, error) {
	ca, err := certs.NewCA(name, time.Now(), 365*24*time.Hour)
	if err != nil {
		return nil, fmt.Errorf("making a CA: %w", err)
	}
	return &PKI{dir: dir, ca: ca}, os.WriteFile(filepath.Join(dir, CAFile), ca.CertPEM(), 0o600)
}

// Issue writes a new certificate for a host, which is a name or an address, and its key to the files NAME.pem and
// NAME-key.pem, and returns the certificate.
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
	block, _ := pem.Decode(pair.CertPEM)
	return x509.ParseCertificate(block.Bytes)
}

// presented returns the certificate with which address answers a client that trusts the PKI.
func (p *PKI) presented(ctx context.Context, address string) (*x509.Certificate, error) {
	roots := x509.NewCertPool()
	roots.AddCert(p.ca.Certificate())
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", address, err)
	}
	defer connection.Close() //nolint:errcheck // the handshake is all that counts
	secure, ok := connection.(*tls.Conn)
	if !ok {
		return nil, fmt.Errorf("a TLS connection of type %T", connection)
	}
	return secure.ConnectionState().PeerCertificates[0], nil
}

// Presents returns nil when address answers with want.
func (p *PKI) Presents(ctx context.Context, address string, want *x509.Certificate) error {
	got, err := p.presented(ctx, address)
	if err != nil {
		return err
	}
	if !got.Equal(want) {
		return fmt.Errorf(
			"%s presents the certificate with serial number %x, not %x",
			address,
			got.SerialNumber,
			want.SerialNumber,
		)
	}
	return nil
}

// WaitPresented waits until address answers with want, and returns how long that took.
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
