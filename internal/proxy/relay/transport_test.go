package relay

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestUpstreamTakesNoCredentials(t *testing.T) {
	t.Parallel()
	config := &rest.Config{Host: "https://api.example.com", BearerToken: "a-token", Username: "root", Password: "root"}
	ca := must.Get(certs.NewCA("ca", time.Now(), time.Hour))(t)
	pair := must.Get(ca.IssueClient(certs.ClientIdentity{Username: "root", Groups: []string{"system:masters"}}, time.Now(),
		time.Hour))(t)
	config.CertData, config.KeyData = pair.CertPEM, pair.KeyPEM
	up := newUpstream(t, config)
	for _, transport := range append(slices.Clone(up.streams), up.upgrade) {
		if c := transport.TLSClientConfig; len(c.Certificates) != 0 || c.GetClientCertificate != nil || c.InsecureSkipVerify {
			t.Error("want no client certificate")
		}
	}
}

// TestAProxyBeforeTheAPIServer checks that requests use the transport with proxy support.
func TestAProxyBeforeTheAPIServer(t *testing.T) {
	t.Parallel()
	config := &rest.Config{Host: "https://api.example.com"}
	config.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy.example.com:3128"})
	up := newUpstream(t, config)
	if up.plain != nil {
		t.Error("want requests sent with the streams, which go through the proxy")
	}
}

// newUpstream returns an upstream that is closed at the end of the test.
func newUpstream(t *testing.T, config *rest.Config) *Upstream {
	t.Helper()
	up := must.Get(NewUpstream(config, 2))(t)
	t.Cleanup(up.Close)
	return up
}

// memory is a listener of connections in memory, as synctest requires.
type memory struct {
	accepted chan net.Conn

	mu   sync.Mutex
	dead *atomic.Bool // of new connections
}

// kill drops all further data on the open connections, in both directions.
func (m *memory) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead.Store(true)
	m.dead = new(atomic.Bool)
}

func (m *memory) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	m.accepted <- theirs
	m.mu.Lock()
	defer m.mu.Unlock()
	return &mortal{ours, m.dead}, nil
}

func (m *memory) Accept() (net.Conn, error) {
	if conn, ok := <-m.accepted; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (m *memory) Close() error   { return nil }
func (m *memory) Addr() net.Addr { return &net.TCPAddr{} }

type mortal struct {
	net.Conn
	dead *atomic.Bool
}

func (c *mortal) Read(p []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(p); err != nil || !c.dead.Load() {
			return n, err
		}
	}
}

func (c *mortal) Write(p []byte) (int, error) {
	if c.dead.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// withStream opens a stream to a server that is silent for ten minutes and then sends one word. Time is synctest's fake
// clock.
func withStream(t *testing.T, upgrade string, test func(api *memory, open func() *http.Response)) {
	t.Helper()
	certified := httptest.NewTLSServer(nil) // for its certificate
	certified.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certified.Certificate().Raw})
	synctest.Test(t, func(t *testing.T) {
		api := &memory{accepted: make(chan net.Conn), dead: new(atomic.Bool)}
		server := &http.Server{
			TLSConfig: &tls.Config{Certificates: certified.TLS.Certificates}, ReadHeaderTimeout: time.Second,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if protocol := req.Header.Get("Upgrade"); protocol != "" {
					w.Header().Set("Connection", "Upgrade")
					w.Header().Set("Upgrade", protocol)
					w.WriteHeader(http.StatusSwitchingProtocols)
					conn, _, _ := http.NewResponseController(w).Hijack()
					time.Sleep(10 * time.Minute)
					_, _ = io.WriteString(conn, "word")
					_ = conn.Close()
					return
				}
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(10 * time.Minute):
					_, _ = io.WriteString(w, "word")
				case <-req.Context().Done():
				}
			}),
		}
		go func() { _ = server.ServeTLS(api, "", "") }()
		config := &rest.Config{Host: "https://api", Dial: api.dial}
		config.CAData, config.ServerName = ca, "example.com"
		up := newUpstream(t, config)
		state := &request.State{LongRunning: true, Upgrade: upgrade}
		test(api, func() *http.Response {
			req := newRequest(request.With(t.Context(), state), t, http.MethodGet, nil)
			if upgrade != "" {
				req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {upgrade}}
			}
			res, err := up.RoundTrip(req)
			must.Do(t, err)
			return res
		})
		up.Close()
		close(api.accepted)
		_ = server.Close()
	})
}

// TestStreamsAreNeverIdle checks that no idle timeout ends a silent stream.
func TestStreamsAreNeverIdle(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"", "websocket"} {
		withStream(t, protocol, func(_ *memory, open func() *http.Response) {
			res := open()
			if said, err := io.ReadAll(res.Body); err != nil || string(said) != "word" {
				t.Errorf("%s: want the word after the silence, got %q and %v", res.Proto, said, err)
			}
			_ = res.Body.Close()
		})
	}
}

// TestDeadConnectionsAreFound has a connection break silently. Pings detect that, and the next stream gets a new
// connection.
func TestDeadConnectionsAreFound(t *testing.T) {
	t.Parallel()
	withStream(t, "", func(api *memory, open func() *http.Response) {
		began, res := time.Now(), open()
		api.kill()
		if _, err := io.ReadAll(res.Body); err == nil || time.Since(began) > 45*time.Second {
			t.Errorf("want the stream broken within 45 s, got %v after %s", err, time.Since(began))
		}
		_ = res.Body.Close()
		again := open()
		if said, err := io.ReadAll(again.Body); err != nil || string(said) != "word" {
			t.Errorf("want another connection, got %q and %v", said, err)
		}
		_ = again.Body.Close()
	})
}
