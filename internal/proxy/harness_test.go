package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// proxy is a running Server in front of an apiServer.
type proxy struct {
	*Server
	api       *apiServer
	address   string
	servingCA *certs.CA
	serving   atomic.Pointer[tls.Certificate]
	signerCA  *certs.CA // client certificates of the product
	clusterCA *certs.CA // client certificates of the cluster
	signer    changingPEM
	token     *staticToken
	stop      context.CancelFunc
	tune      func(*Server)                         // called before it runs, if not nil
	context   func(context.Context) context.Context // returns the context to run in, if not nil
	ended     chan error
}

// changingPEM is PEM that a test can change.
type changingPEM struct{ pem atomic.Value }

func (c *changingPEM) Load() []byte {
	pem, _ := c.pem.Load().([]byte)
	return pem
}

func (c *changingPEM) Store(pem []byte) { c.pem.Store(pem) }

// staticToken is a TokenSource that a test can change.
type staticToken struct {
	mu       sync.Mutex
	token    string
	rejected []string
}

func (s *staticToken) Token() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token == "" {
		return "", errors.New("none yet")
	}
	return s.token, nil
}

func (s *staticToken) Reject(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rejected = append(s.rejected, token)
}

func (s *staticToken) set(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

type prepare func(*proxy, *Options)

// startProxy runs a proxy until the test ends or calls stop.
func startProxy(t *testing.T, changes ...prepare) *proxy {
	t.Helper()
	p := newProxy(t)
	p.start(t, changes...)
	return p
}

func newProxy(tb testing.TB) *proxy {
	tb.Helper()
	return newProxyTo(tb, newAPIServer(tb, "HTTP/2.0"))
}

func newProxyTo(tb testing.TB, api *apiServer) *proxy {
	tb.Helper()
	p := &proxy{
		api:       api,
		servingCA: newCA(tb, "serving CA"),
		signerCA:  newCA(tb, "signer CA"),
		clusterCA: newCA(tb, "cluster CA"),
		token:     &staticToken{token: upstreamToken},
		ended:     make(chan error, 1),
	}
	p.api.configMap["client-ca-file"] = string(p.clusterCA.CertPEM())
	p.signer.Store(p.signerCA.CertPEM())
	p.renewServing(tb)
	return p
}

func (p *proxy) start(t *testing.T, changes ...prepare) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx = context.WithoutCancel(ctx) // stop ends the proxy
	if p.context != nil {
		ctx = p.context(ctx)
	}
	ctx, p.stop = context.WithCancel(ctx)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = listener.Addr().String()
	options := Options{
		Listener:           listener,
		ServingCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.serving.Load(), nil },
		SignerCABundle:     p.signer.Load,
		Agent:              p.api.config(agentToken),
		Upstream:           p.api.config("must not be used"),
		Token:              p.token,
		GroupSuffix:        "pinniped.dev",
		FlowControl:        shippedAdmission(),
		Processors:         2,
		Metrics:            NewMetrics(),
		StreamGrace:        50 * time.Millisecond,
		DrainTimeout:       10 * time.Second,
	}
	for _, change := range changes {
		change(p, &options)
	}
	p.Server, err = New(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	if p.tune != nil {
		p.tune(p.Server)
	}
	go func() { p.ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		p.stop()
		select {
		case err := <-p.ended:
			if err != nil {
				t.Errorf("want the proxy to end in good order, got %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the proxy did not end")
		}
	})
	eventually(t, func() bool { return p.Ready() == nil })
}

// counts returns the numbers of open requests and of streams among them.
func (d *drain) counts() (serving, streams int64) { return d.serving.Load(), d.streams.Load() }

// shippedAdmission has the limits of the default pod.
func shippedAdmission() *flowcontrol.Controller {
	return flowcontrol.New(flowcontrol.LimitsFor(flowcontrol.DefaultMemory, 2))
}

func newCA(tb testing.TB, name string) *certs.CA {
	tb.Helper()
	ca, err := certs.NewCA(name, time.Now(), time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	return ca
}

// renewServing replaces the proxy's serving certificate.
func (p *proxy) renewServing(tb testing.TB) *x509.Certificate {
	tb.Helper()
	pair, err := p.servingCA.IssueServing(certs.SANs{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, time.Now(), time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	certificate := keyPair(tb, pair)
	p.serving.Store(certificate)
	leaf, err := x509.ParseCertificate(certificate.Certificate[0])
	if err != nil {
		tb.Fatal(err)
	}
	return leaf
}

func keyPair(tb testing.TB, pair *certs.KeyPair) *tls.Certificate {
	tb.Helper()
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		tb.Fatal(err)
	}
	return &certificate
}

// clientCertificate issues a currently valid client certificate.
func clientCertificate(tb testing.TB, ca *certs.CA, name string, groups ...string) *tls.Certificate {
	tb.Helper()
	pair, err := ca.IssueClient(certs.ClientIdentity{Username: name, Groups: groups}, time.Now(), time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	return keyPair(tb, pair)
}

// clientTLS trusts the proxy, and presents certificate regardless of the CAs that the proxy lists.
func (p *proxy) clientTLS(certificate *tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.servingCA.CertPEM())
	config := &tls.Config{RootCAs: roots}
	if certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	return config
}

// client returns an HTTP/2 client with certificate, if that is not nil.
func (p *proxy) client(t *testing.T, certificate *tls.Certificate) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: p.clientTLS(certificate), ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// as returns a client with a certificate of the signer CA.
func (p *proxy) as(t *testing.T, name string, groups ...string) *http.Client {
	t.Helper()
	return p.client(t, clientCertificate(t, p.signerCA, name, groups...))
}

type response struct {
	Code   int
	Header http.Header
	Body   string
}

func (p *proxy) do(t *testing.T, client *http.Client, method, path string, header http.Header, body string) response {
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "https://"+p.address+path, reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{Code: res.StatusCode, Header: res.Header, Body: string(text)}
}

func (p *proxy) get(t *testing.T, client *http.Client, path string, header http.Header) response {
	t.Helper()
	return p.do(t, client, http.MethodGet, path, header, "")
}

// raw sends bytes unchanged over HTTP/1.1 and returns the connection.
func (p *proxy) raw(t *testing.T, certificate *tls.Certificate, request string) *tls.Conn {
	t.Helper()
	config := p.clientTLS(certificate)
	config.NextProtos = []string{"http/1.1"}
	conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, strings.ReplaceAll(request, "\n", "\r\n")); err != nil {
		t.Fatal(err)
	}
	return conn.(*tls.Conn)
}

// identityOf returns the identity headers.
func identityOf(r *recorded) map[string][]string {
	found := map[string][]string{}
	for name, values := range r.Header {
		folded := request.Fold(name)
		if strings.HasPrefix(folded, "impersonate") || strings.HasPrefix(folded, "x-remote") || folded == "authorization" {
			found[name] = values
		}
	}
	return found
}

func eventually(t *testing.T, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !check(); {
		if time.Now().After(deadline) {
			t.Fatal("waited too long")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func readerOf(conn net.Conn) *bufio.Reader { return bufio.NewReader(conn) }

// closedListener returns a closed listener, for servers that never run.
func closedListener(tb testing.TB) net.Listener {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	_ = listener.Close()
	return listener
}

func identityFor(name string, groups ...string) certs.ClientIdentity {
	return certs.ClientIdentity{Username: name, Groups: groups}
}

// exchange sends bytes unchanged over HTTP/1.1 and returns the first response.
func (p *proxy) exchange(t *testing.T, certificate *tls.Certificate, request string) (int, string, http.Header) {
	t.Helper()
	res, err := http.ReadResponse(readerOf(p.raw(t, certificate, request)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body), res.Header
}

// steppedClock is the real clock, advanced by steps. Timers are real.
type steppedClock struct {
	clock.RealClock
	ahead atomic.Int64
}

func (c *steppedClock) Step(d time.Duration) { c.ahead.Add(int64(d)) }
func (c *steppedClock) Now() time.Time       { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *steppedClock) Since(then time.Time) time.Duration {
	return c.Now().Sub(then)
}

// stillClock only advances when stepped. Timers are real.
type stillClock struct {
	clock.RealClock
	start time.Time
	ahead atomic.Int64
}

func newStillClock() *stillClock { return &stillClock{start: time.Now()} }

func (c *stillClock) Step(d time.Duration) { c.ahead.Add(int64(d)) }
func (c *stillClock) Now() time.Time       { return c.start.Add(time.Duration(c.ahead.Load())) }

func (c *stillClock) Since(then time.Time) time.Duration {
	return c.Now().Sub(then)
}

// still sets the proxy's clock.
func still(c *stillClock) prepare { return func(_ *proxy, o *Options) { o.Clock = c } }
