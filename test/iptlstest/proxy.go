package iptlstest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// Proxy is an HTTPS server on loopback whose certificate can be replaced, like that of the impersonation proxy.
type Proxy struct {
	certificate atomic.Pointer[tls.Certificate]
	pair        atomic.Pointer[certs.KeyPair]
	status      atomic.Int64
	Port        int
}

// Answer sets the HTTP status of responses. With zero there are none, as when the API server behind the proxy hangs.
func (p *Proxy) Answer(status int) { p.status.Store(int64(status)) }

// ServeHTTP responds with the status of Answer.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if status := int(p.status.Load()); status != 0 {
		w.WriteHeader(status)
		return
	}
	<-req.Context().Done()
}

// Serve makes the proxy present pair.
func (p *Proxy) Serve(t *testing.T, pair *certs.KeyPair) {
	t.Helper()
	certificate := must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(t)
	p.certificate.Store(&certificate)
	p.pair.Store(pair)
}

// StartProxy starts a proxy that presents pair, until the end of the test.
func StartProxy(t *testing.T, pair *certs.KeyPair) *Proxy {
	t.Helper()
	p := &Proxy{}
	p.Serve(t, pair)
	listener := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	p.Port = listener.Addr().(*net.TCPAddr).Port
	p.Answer(http.StatusOK)
	server := &http.Server{
		Handler: p, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.certificate.Load(), nil },
		},
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.ServeTLS(listener, "", "") }()
	return p
}

// Endpoint returns HOST:PORT.
func (p *Proxy) Endpoint() string { return "127.0.0.1:" + strconv.Itoa(p.Port) }

// URL returns the address as the status has it.
func (p *Proxy) URL() string { return "https://" + p.Endpoint() }

// Network resolves names and presents certificates from memory, without connections.
type Network struct {
	Addresses []netip.Addr
	Chains    map[string][]*x509.Certificate
	Errs      map[string]error
}

// Resolve returns the field Addresses.
func (n Network) Resolve(context.Context, string) ([]netip.Addr, error) { return n.Addresses, nil }

// Asked returns the chain or the error of an address, and the HTTP status of a working proxy.
func (n Network) Asked(_ context.Context, at, _ string) ([]*x509.Certificate, int, error) {
	return n.Chains[at], http.StatusOK, n.Errs[at]
}
