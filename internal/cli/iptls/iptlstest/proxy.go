package iptlstest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Proxy is a TLS server on loopback whose certificate can be changed, as the impersonation proxy's.
type Proxy struct {
	certificate atomic.Pointer[tls.Certificate]
	Port        int
}

// Serve makes the proxy present another certificate.
func (p *Proxy) Serve(t *testing.T, pair *certs.KeyPair) {
	t.Helper()
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	p.certificate.Store(&certificate)
}

// StartProxy starts a proxy with this certificate, until the end of the test.
func StartProxy(t *testing.T, pair *certs.KeyPair) *Proxy {
	t.Helper()
	p := &Proxy{}
	p.Serve(t, pair)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	p.Port = listener.Addr().(*net.TCPAddr).Port
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.certificate.Load(), nil },
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = tls.Server(conn, config).HandshakeContext(context.Background())
				_ = conn.Close()
			}()
		}
	}()
	return p
}

// Endpoint is host and port.
func (p *Proxy) Endpoint() string { return "127.0.0.1:" + strconv.Itoa(p.Port) }

// URL is the address as the status has it.
func (p *Proxy) URL() string { return "https://" + p.Endpoint() }

// Network resolves names and presents certificates from memory, without connections.
type Network struct {
	Addresses []netip.Addr
	Chains    map[string][]*x509.Certificate
	Errs      map[string]error
}

// Resolve returns the addresses.
func (n Network) Resolve(context.Context, string) ([]netip.Addr, error) { return n.Addresses, nil }

// Presented returns the chain, or the error, of an address.
func (n Network) Presented(_ context.Context, at, _ string) ([]*x509.Certificate, error) {
	return n.Chains[at], n.Errs[at]
}
