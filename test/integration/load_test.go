package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// trusting returns the CAs of bundles.
func trusting(bundles ...[]byte) *x509.CertPool {
	roots := x509.NewCertPool()
	for _, bundle := range bundles {
		roots.AppendCertsFromPEM(bundle)
	}
	return roots
}

// certificateOf returns a client certificate of the cluster's CA.
func (w *world) certificateOf(t *testing.T, name string, groups ...string) tls.Certificate {
	t.Helper()
	user := must.Get(w.Cluster.User(name, groups...))(t)
	return must.Get(tls.X509KeyPair(user.CertData, user.KeyData))(t)
}

func clientTLS(roots *x509.CertPool, certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: roots, Certificates: certificates, MinVersion: tls.VersionTLS12}
}

// traffic is load on the proxies of both replicas. Of four clients, two keep their connection, and two open a new one
// for each request.
type traffic struct {
	cancel   context.CancelFunc
	clients  sync.WaitGroup
	requests atomic.Int64
	dials    atomic.Int64 // of the clients that keep their connection
	failures chan error
}

// keepers is the number of clients that keep their connection.
const keepers = 4

// load sends requests to all replicas, as a known user who trusts only roots.
func (w *world) load(t *testing.T, roots *x509.CertPool) *traffic {
	t.Helper()
	// Like the API server, the proxy closes connections of unauthenticated clients after each response.
	identity := w.certificateOf(t, "ann")
	ctx, cancel := context.WithCancel(t.Context())
	l := &traffic{cancel: cancel, failures: make(chan error, 100)}
	for i := range 8 {
		keep := i%2 == 0
		url := fmt.Sprintf("https://localhost:%d/version", w.agents[i/2%len(w.agents)].ProxyPort)
		transport := &http.Transport{
			TLSClientConfig:   clientTLS(roots, identity),
			ForceAttemptHTTP2: true,
			DisableKeepAlives: !keep,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if keep {
					l.dials.Add(1)
				}
				return (&net.Dialer{}).DialContext(ctx, network, address)
			},
		}
		l.clients.Go(func() {
			defer transport.CloseIdleConnections()
			for ctx.Err() == nil {
				if err := fetch(transport, url); err != nil {
					l.failures <- err
					return
				}
				l.requests.Add(1)
			}
		})
	}
	t.Cleanup(cancel)
	return l
}

// stop ends the load. No request and no kept connection may have failed.
func (l *traffic) stop(t *testing.T) {
	t.Helper()
	l.cancel()
	l.clients.Wait()
	close(l.failures)
	for err := range l.failures {
		t.Errorf("a request failed: %v", err)
	}
	if got := l.dials.Load(); got != keepers {
		t.Errorf("the %d clients that keep their connection dialled %d times", keepers, got)
	}
	t.Logf("%d requests", l.requests.Load())
	if l.requests.Load() < 100 {
		t.Error("that was no load")
	}
}
