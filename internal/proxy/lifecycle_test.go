package proxy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

// checkUnavailable expects a Status with 503 and, if a retry is safe, Retry-After.
func checkUnavailable(t *testing.T, got response, retry bool) {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal([]byte(got.Body), &status); err != nil {
		t.Fatalf("want a Status, got %d %q", got.Code, got.Body)
	}
	if got.Code != 503 || status.Code != 503 || status.Reason != metav1.StatusReasonServiceUnavailable ||
		status.Message == "" {
		t.Errorf("want 503, got %d: %s", got.Code, got.Body)
	}
	if (got.Header.Get("Retry-After") == "1") != retry {
		t.Errorf("want Retry-After: %t, got %q", retry, got.Header.Get("Retry-After"))
	}
}

func TestNoTokenYet(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.token.set("")
	client := p.as(t, "jane")
	checkUnavailable(t, p.get(t, client, "/api/v1/nodes", nil), true)
	p.api.checkNothingSent(t)
	if err := p.Ready(); err == nil {
		t.Error("want not ready without a token")
	}
	p.token.set(upstreamToken)
	p.get(t, client, "/api/v1/nodes", nil).check(t, 200, "want 200 with a token")
}

func TestTokenIsNotAccepted(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	var accepted atomic.Bool // an aggregated API responds after the API server has accepted the credential
	p.api.serves(func(w http.ResponseWriter, _ *http.Request) {
		if accepted.Load() {
			w.Header().Set("X-Kubernetes-Pf-Flowschema-Uid", "1")
		}
		w.WriteHeader(401)
		_, _ = io.WriteString(w, "who are you?")
	})
	client := p.as(t, "jane")
	checkUnavailable(t, p.get(t, client, "/api/v1/nodes", nil), true)
	same.Values(t, "rejected tokens", []string{upstreamToken}, p.token.rejected)
	accepted.Store(true)
	if got := p.get(t, client, "/apis/metrics.k8s.io/v1beta1/nodes", nil); got.Code != 401 || got.Body != "who are you?" {
		t.Errorf("want the aggregated API's own response, got %d: %s", got.Code, got.Body)
	}
	if len(p.token.rejected) != 1 {
		t.Errorf("the aggregated API's response counts as a refusal of the proxy's credential: %v", p.token.rejected)
	}
	// A program behind the API server has its own users.
	got := p.get(t, client, "/api/v1/namespaces/d/services/x/proxy/login", nil)
	if got.Code != 401 || got.Body != "who are you?" {
		t.Errorf("want the program's own response, got %d: %s", got.Code, got.Body)
	}
}

// gate forwards connections to a server while it is open.
type gate struct {
	address string
	open    atomic.Bool
	mu      sync.Mutex
	conns   []net.Conn
}

func newGate(t *testing.T, server string) *gate {
	t.Helper()
	g := &gate{}
	g.open.Store(true)
	g.address = listen(t, func(from net.Conn) {
		to, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server)
		if err != nil {
			return
		}
		g.mu.Lock()
		g.conns = append(g.conns, from, to)
		g.mu.Unlock()
		forward(from, to)
	})
	t.Cleanup(g.cut)
	return g
}

// startGated runs a proxy whose connections to the API server may pass a gate.
func startGated(t *testing.T, through func(*Options, *gate)) (*proxy, *gate) {
	t.Helper()
	p := newProxy(t)
	g := newGate(t, p.api.Listener.Addr().String())
	p.start(t, func(_ *proxy, o *Options) { through(o, g) })
	return p, g
}

// dial connects through the gate, which refuses connections while it is closed.
func (g *gate) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	if !g.open.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
	}
	return (&net.Dialer{}).DialContext(ctx, network, g.address)
}

// cut closes all connections.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.conns {
		_ = c.Close()
	}
	g.conns = nil
}

func TestAPIServerAway(t *testing.T) {
	t.Parallel()
	p, g := startGated(t, func(o *Options, g *gate) { o.Agent.Dial, o.Upstream.Dial = g.dial, g.dial })
	client, root := p.as(t, "jane"), p.as(t, "root", "system:masters")
	p.get(t, client, "/api/v1/nodes", nil).require(t, 200, "want 200")
	g.open.Store(false)
	g.cut()
	token := http.Header{"Authorization": {"Bearer x"}}
	nested := http.Header{"Impersonate-User": {"joe"}}
	checkUnavailable(t, p.get(t, root, "/api/v1/nodes", nil), true)                          // forwarding
	checkUnavailable(t, p.do(t, root, "POST", "/api/v1/namespaces/d/pods", nil, "{}"), true) // never sent
	checkUnavailable(t, p.get(t, client, "/api/v1/pods", nil), true)                         // authorization
	checkUnavailable(t, p.get(t, client, "/api/v1/pods", nested), true)                      // nested impersonation
	checkUnavailable(t, p.get(t, p.client(t, nil), "/api/v1/nodes", token), true)            // authentication
	if err := p.Ready(); err != nil {
		t.Errorf("want ready: every replica is as badly off, got %v", err)
	}
	g.open.Store(true)
	for name, c := range map[string]*http.Client{"jane": client, "root": root} {
		p.get(t, c, "/api/v1/nodes", nil).check(t, 200, "want 200 for %s again", name)
	}
}

func TestConnectionLostAfterSending(t *testing.T) {
	t.Parallel()
	p, g := startGated(t, func(o *Options, g *gate) { o.Upstream.Dial = g.dial })
	p.api.serves(func(http.ResponseWriter, *http.Request) { g.cut() })
	client := p.as(t, "jane")
	checkUnavailable(t, p.get(t, client, "/api/v1/nodes", nil), true)
	// It may have been carried out, so the client must not retry by itself.
	checkUnavailable(t, p.do(t, client, "POST", "/api/v1/namespaces/d/pods", nil, "{}"), false)
}

func TestUpstreamCertificateIsVerified(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	other := newAPIServer(t, "HTTP/2.0")
	config := p.api.config("")
	config.Host = other.URL
	config.CAData = p.servingCA.CertPEM()
	up := must.Get(relay.NewUpstream(config, 2))(t)
	defer up.Close()
	req := must.Get(http.NewRequestWithContext(t.Context(), "GET", other.URL+"/healthz", nil))(t)
	_, err := up.RoundTrip(req) //nolint:bodyclose // there is none
	if unknown := (*tls.CertificateVerificationError)(nil); !errors.As(err, &unknown) {
		t.Errorf("want a certificate of another CA refused, got %v", err)
	}
}

func TestSecurityHeaders(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Cache-Control", "public")
			w.Header().Set("X-Content-Type-Options", "whatever")
			w.Header().Set("Audit-Id", "a-1")
			if req.URL.Path == "/hints" {
				w.WriteHeader(http.StatusEarlyHints)
			}
			w.WriteHeader(200)
		}
		p.api.allow = allowing("get /ok", "get /hints")
	})
	want := map[string][]string{
		"Content-Security-Policy": {"default-src 'none'; frame-ancestors 'none'"},
		"X-Frame-Options":         {"DENY"},
		"X-Xss-Protection":        {"1; mode=block"},
		"X-Content-Type-Options":  {"nosniff"},
		"Referrer-Policy":         {"no-referrer"},
		"X-Dns-Prefetch-Control":  {"off"},
		"Cache-Control":           {"no-cache,no-store,max-age=0,must-revalidate"},
		"Pragma":                  {"no-cache"},
		"Expires":                 {"0"},
	}
	for path, code := range map[string]int{"/ok": 200, "/hints": 200, "/denied": 403, "//": 400} {
		got := p.get(t, p.as(t, "jane"), path, nil)
		if got.Code != code {
			t.Errorf("%s: want %d, got %d", path, code, got.Code)
		}
		found := map[string][]string{}
		for name := range want {
			found[name] = got.Header[name]
		}
		if diff := cmp.Diff(want, found); diff != "" {
			t.Errorf("%s: security headers (-want +got):\n%s", path, diff)
		}
		if code == 200 && got.Header.Get("Audit-Id") != "a-1" {
			t.Errorf("%s: want the API server's headers too, got %v", path, got.Header)
		}
	}
}

func TestBodies(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.serves(func(w http.ResponseWriter, req *http.Request) { _, _ = io.Copy(w, req.Body) })
	for _, size := range []int{1, listener.MaxHeldBody, listener.MaxHeldBody + 1, 3 << 20} {
		body := strings.Repeat("x", size)
		got := p.do(t, p.as(t, "jane"), "POST", "/api/v1/namespaces/d/configmaps", nil, body)
		if got.Code != 200 || got.Body != body {
			t.Errorf("want %d bytes there and back, got %d and %d bytes", size, got.Code, len(got.Body))
		}
	}
	if got := p.api.requests()[0].Header; got.Get("Content-Length") != "1" {
		t.Errorf("want the length known, got %v", got)
	}
}

func TestServingCertificateChangesUnderLoad(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	var stop atomic.Bool
	var load sync.WaitGroup
	var requests atomic.Int64
	for range 4 {
		client := p.as(t, "jane")
		load.Go(func() {
			for !stop.Load() {
				p.get(t, client, "/api/v1/nodes", nil).check(t, 200, "want 200")
				requests.Add(1)
			}
		})
	}
	for range 20 {
		want := p.renewServing(t)
		conn := p.raw(t, nil, "")
		if got := conn.ConnectionState().PeerCertificates[0]; !got.Equal(want) {
			t.Error("want the new certificate on the next connection")
		}
		seen := requests.Load()
		eventually(t, func() bool { return requests.Load() > seen+10 })
	}
	stop.Store(true)
	load.Wait()
}

func TestNoServingCertificate(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	certificate := p.serving.Swap(nil)
	if err := p.Ready(); err == nil {
		t.Error("want not ready without a certificate")
	}
	if _, err := (&tls.Dialer{Config: p.clientTLS(nil)}).DialContext(t.Context(), "tcp", p.address); err == nil {
		t.Error("want handshakes refused")
	}
	p.serving.Store(certificate)
	if err := p.Ready(); err != nil {
		t.Errorf("want ready again, got %v", err)
	}
}

// heldClock is the real clock, but its After only fires when released.
type heldClock struct {
	clock.RealClock
	release chan time.Time
}

func (c *heldClock) After(time.Duration) <-chan time.Time { return c.release }

func TestDrain(t *testing.T) {
	t.Parallel()
	clock := &heldClock{release: make(chan time.Time)}
	delayEnds := sync.OnceFunc(func() { close(clock.release) })
	p := startProxy(t, func(_ *proxy, o *Options) { o.Clock = clock })
	t.Cleanup(delayEnds)
	release := make(chan struct{})
	p.api.serves(echoOr(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.URL.Query().Get("watch") != "":
			_, _ = io.WriteString(w, "event\n")
			silent(w, req)
		case strings.HasPrefix(req.URL.Path, "/slow"):
			<-release
			_, _ = io.WriteString(w, "done")
		}
	}))
	client := p.as(t, "jane")
	slow := make(chan response, 1)
	go func() {
		defer close(slow)
		slow <- p.get(t, client, "/slow", nil)
	}()
	watch := p.open(t.Context(), t, p.as(t, "jane"), "/api/v1/pods?watch=1")
	upgraded, _ := p.switches(t, upgradeTo("websocket", "exec", ""))
	eventually(t, func() bool { return p.drain.serving.Load() == 3 && p.drain.streams.Load() == 2 })

	p.stop()
	eventually(t, func() bool { return p.Ready() != nil })
	p.get(t, p.as(t, "joe"), "/api/v1/nodes", nil).check(t, 200, "want requests served while load balancers learn of it")
	delayEnds()
	if got, err := io.ReadAll(watch.Body); err != nil || string(got) != "event\n" {
		t.Errorf("want the watch to end in good order, got %q, %v", got, err)
	}
	if _, err := io.ReadAll(upgraded); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("want the upgraded connection closed, got %v", err)
	}
	select {
	case err := <-p.ended:
		t.Fatalf("want the proxy to wait for the slow request, it ended with %v", err)
	case got := <-slow:
		t.Fatalf("the slow request was cut: %v", got)
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	if got := <-slow; got.Code != 200 || got.Body != "done" {
		t.Errorf("want the slow request finished, got %d %q", got.Code, got.Body)
	}
	if err := <-p.ended; err != nil {
		t.Errorf("want a drain without loss, got %v", err)
	}
	p.ended <- nil // for the cleanup
	if _, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.address); err == nil {
		t.Error("want the port closed")
	}
}

// TestNothingIsLostAtShutdown has clients that follow HTTP, as during a rolling restart of two replicas.
func TestNothingIsLostAtShutdown(t *testing.T) {
	t.Parallel()
	p := startProxy(t, func(_ *proxy, o *Options) { o.DrainDelay = 500 * time.Millisecond })
	jane := p.jane(t)
	var clients sync.WaitGroup
	for _, protocol := range []string{"h2", "http/1.1"} {
		transport := &http.Transport{TLSClientConfig: p.clientTLS(jane), ForceAttemptHTTP2: protocol == "h2"}
		transport.TLSClientConfig.NextProtos = []string{protocol}
		t.Cleanup(transport.CloseIdleConnections)
		for range 4 {
			clients.Go(func() {
				for p.Ready() == nil { // a load balancer that notices at once
					req, _ := http.NewRequestWithContext(t.Context(), "POST",
						"https://"+p.address+"/api/v1/namespaces/d/configmaps", strings.NewReader("{}"))
					if protocol == "http/1.1" {
						req.GetBody = nil // HTTP/2 tells which requests were not processed; those are sent again
					}
					res, err := transport.RoundTrip(req)
					if err != nil {
						t.Errorf("%s: lost a request: %v", protocol, err)
						return
					}
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
			})
		}
	}
	eventually(t, func() bool { return len(p.api.requests()) > 200 })
	p.stop()
	clients.Wait()
}

func TestRunsOnce(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	if err := p.Run(t.Context()); err == nil {
		t.Error("want a second run refused")
	}
}

// TestNewNeedsTheAPIServer checks that a proxy does not begin without what it must know.
func TestNewNeedsTheAPIServer(t *testing.T) {
	t.Parallel()
	const unknown = "could not detect if anonymous authentication is enabled: error from "
	for want, test := range map[string]struct {
		broken string // the path with an unexpected response to anonymous users
		change func(*proxy, *Options)
	}{
		unknown + "healthz API: ":  {broken: "/healthz"},
		unknown + "v1 nodes API: ": {broken: "/api/v1/nodes"},
		"is not https": {change: func(p *proxy, o *Options) {
			o.Upstream = p.api.config("")
			o.Upstream.Host, o.Upstream.CAData = "http://127.0.0.1", nil
		}},
		`reading ConfigMap "kube-system/extension-apiserver-authentication"`: {change: func(p *proxy, o *Options) {
			o.Agent = p.api.config("other")
			p.api.serves(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) })
		}},
	} {
		p := newProxy(t)
		p.api.anonymous = func(asked string) int {
			if asked == test.broken {
				return 500
			}
			return 200
		}
		listener := listenHere(t)
		_ = listener.Close()
		options := p.options(listener, p.api.config(agentToken), p.api.config(""), p.token)
		if test.change != nil {
			test.change(p, &options)
		}
		if _, err := New(t.Context(), options); err == nil || !strings.Contains(err.Error(), want) ||
			test.broken != "" && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("want error with %q, got %v", want, err)
		}
	}
}
