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
)

// traffic is load on the proxies of both replicas: of each four clients, two keep their connection and two make a new
// one for each request.
type traffic struct {
	cancel   context.CancelFunc
	clients  sync.WaitGroup
	requests atomic.Int64
	dials    atomic.Int64 // of those that keep their connection
	failures chan error
}

// keepers is how many clients keep their connection.
const keepers = 4

// load begins to call all replicas, as a user that the cluster knows, with roots as all that is trusted.
func (w *world) load(t *testing.T, roots *x509.CertPool) *traffic {
	t.Helper()
	// Connections of unknown clients are closed after each answer, as the API server does it; these are known.
	user, err := w.Cluster.User("ann")
	if err != nil {
		t.Fatal(err)
	}
	identity, err := tls.X509KeyPair(user.CertData, user.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l := &traffic{cancel: cancel, failures: make(chan error, 100)}
	for i := range 8 {
		keep := i%2 == 0
		url := fmt.Sprintf("https://localhost:%d/version", w.agents[i/2%len(w.agents)].ProxyPort)
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{
				RootCAs:      roots,
				Certificates: []tls.Certificate{identity},
				MinVersion:   tls.VersionTLS12,
			},
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

// stop ends the load. No request may have failed, and no kept connection may have been dropped.
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
