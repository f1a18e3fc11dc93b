package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// proxy is a running Server in front of an apiServer.
type proxy struct {
	*Server
	api       *apiServer
	address   string
	servingCA *certs.CA
	serving   atomic.Pointer[tls.Certificate]
	signerCA  *certs.CA    // client certificates of the product
	clusterCA *certs.CA    // client certificates of the cluster
	signer    atomic.Value // []byte
	janeOnce  sync.Once
	janes     *tls.Certificate
	token     *staticToken
	stop      context.CancelFunc
	tune      func(*Server)                         // called before it runs, if not nil
	context   func(context.Context) context.Context // returns the context to run in, if not nil
	ended     chan error
}

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
	options := p.options(listenHere(t), p.api.config(agentToken), p.api.config("must not be used"), p.token)
	for _, change := range changes {
		change(p, &options)
	}
	p.Server = must.Get(New(ctx, options))(t)
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

// options returns the options that all proxies of the tests share.
func (p *proxy) options(listener net.Listener, agent, upstream *rest.Config, token relay.TokenSource) Options {
	p.address = listener.Addr().String()
	return Options{
		Listener:           listener,
		ServingCertificate: p.servingCertificate,
		SignerCABundle:     func() []byte { return p.signer.Load().([]byte) },
		Agent:              agent,
		Upstream:           upstream,
		Token:              token,
		GroupSuffix:        "pinniped.dev",
		FlowControl:        flowcontrol.New(flowcontrol.LimitsFor(flowcontrol.DefaultMemory, 2)),
		Processors:         2,
		Metrics:            NewMetrics(),
		StreamGrace:        50 * time.Millisecond,
		DrainTimeout:       10 * time.Second,
	}
}

func listenHere(tb testing.TB) net.Listener {
	tb.Helper()
	return must.Get((&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0"))(tb)
}

func (p *proxy) servingCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if certificate := p.serving.Load(); certificate != nil {
		return certificate, nil
	}
	return nil, errors.New("there is no serving certificate yet")
}

// waitServing waits until this number of requests is open.
func (p *proxy) waitServing(t *testing.T, want int64) {
	t.Helper()
	eventually(t, func() bool { return p.drain.serving.Load() == want && p.drain.streams.Load() <= want })
}

func newCA(tb testing.TB, name string) *certs.CA {
	tb.Helper()
	return must.Get(certs.NewCA(name, time.Now(), time.Hour))(tb)
}

// renewServing replaces the proxy's serving certificate.
func (p *proxy) renewServing(tb testing.TB) *x509.Certificate {
	tb.Helper()
	pair := must.Get(
		p.servingCA.IssueServing(certs.SANs{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, time.Now(), time.Hour),
	)(tb)
	certificate := keyPair(tb, pair)
	p.serving.Store(certificate)
	return must.Get(x509.ParseCertificate(certificate.Certificate[0]))(tb)
}

func keyPair(tb testing.TB, pair *certs.KeyPair) *tls.Certificate {
	tb.Helper()
	certificate := must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(tb)
	return &certificate
}

// clientCertificate issues a currently valid client certificate.
func clientCertificate(tb testing.TB, ca *certs.CA, name string, groups ...string) *tls.Certificate {
	tb.Helper()
	return certificateFrom(tb, ca, time.Now(), name, groups...)
}

// certificateFrom issues a client certificate for an hour.
func certificateFrom(tb testing.TB, ca *certs.CA, start time.Time, name string, groups ...string) *tls.Certificate {
	tb.Helper()
	pair := must.Get(ca.IssueClient(certs.ClientIdentity{Username: name, Groups: groups}, start, time.Hour))(tb)
	return keyPair(tb, pair)
}

// certificateOf returns a client certificate, or nil for an unauthenticated client, who has no name.
func (p *proxy) certificateOf(tb testing.TB, name string) *tls.Certificate {
	tb.Helper()
	if name == "" {
		return nil
	}
	return clientCertificate(tb, p.signerCA, name)
}

// jane returns the client certificate of a user.
func (p *proxy) jane(tb testing.TB) *tls.Certificate {
	tb.Helper()
	p.janeOnce.Do(func() { p.janes = clientCertificate(tb, p.signerCA, "jane") })
	return p.janes
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

// check fails the test unless the response has this code, and require also ends it.
func (r response) check(t *testing.T, want int, format string, args ...any) {
	t.Helper()
	if r.Code != want {
		t.Errorf(format+": want %d, got %d: %s", append(args, want, r.Code, r.Body)...)
	}
}

func (r response) require(t *testing.T, want int, format string, args ...any) {
	t.Helper()
	if r.check(t, want, format, args...); r.Code != want {
		t.FailNow()
	}
}

func (p *proxy) do(t *testing.T, client *http.Client, method, path string, header http.Header, body string) response {
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	return must.Get(p.send(t.Context(), client, method, path, header, reader))(t)
}

// send sends a request and reads the whole response.
func (p *proxy) send(
	ctx context.Context, client *http.Client, method, path string, header http.Header, body io.Reader,
) (response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "https://"+p.address+path, body)
	if err != nil {
		return response{}, err
	}
	maps.Copy(req.Header, header)
	res, err := client.Do(req)
	if err != nil {
		return response{}, err
	}
	return readAll(res)
}

func readAll(res *http.Response) (response, error) {
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	return response{Code: res.StatusCode, Header: res.Header, Body: string(text)}, err
}

// live is a response whose body the test reads itself, if at all.
type live struct{ *http.Response }

// open sends a request and reads the header of the response.
func (p *proxy) open(ctx context.Context, t *testing.T, client *http.Client, path string) live {
	t.Helper()
	req := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "https://"+p.address+path, nil))(t)
	res, err := client.Do(req)
	must.Do(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	return live{res}
}

func (p *proxy) get(t *testing.T, client *http.Client, path string, header http.Header) response {
	t.Helper()
	return p.do(t, client, http.MethodGet, path, header, "")
}

// dial connects without TLS until the test ends.
func (p *proxy) dial(t *testing.T) net.Conn {
	t.Helper()
	conn := must.Get((&net.Dialer{}).DialContext(t.Context(), "tcp", p.address))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// crlf writes requests of tests as they are sent: \n stands for CRLF, \x01 for a bare LF.
var crlf = strings.NewReplacer("\n", "\r\n", "\x01", "\n")

// raw sends bytes over HTTP/1.1, otherwise unchanged, and returns the connection.
func (p *proxy) raw(t *testing.T, certificate *tls.Certificate, request string) *tls.Conn {
	t.Helper()
	config := p.clientTLS(certificate)
	config.NextProtos = []string{"http/1.1"}
	conn := must.Get((&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", p.address))(t)
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	must.Get(io.WriteString(conn, crlf.Replace(request)))(t)
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

// carried returns the identity headers of a user, with the group of all users unless it is given.
func carried(user string, groups ...string) map[string][]string {
	if groups == nil {
		groups = []string{"system:authenticated"}
	}
	return map[string][]string{
		"Authorization": {"Bearer " + upstreamToken}, "Impersonate-User": {user}, "Impersonate-Group": groups,
	}
}

// checkIdentity compares the identity headers of a request, except the ID that every certificate has.
func checkIdentity(t *testing.T, one *recorded, want map[string][]string) {
	t.Helper()
	got := identityOf(one)
	delete(got, "Impersonate-Extra-Authentication.kubernetes.io%2fcredential-Id")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("identity of %s %.200s (-want +got):\n%s", one.Method, one.URI, diff)
	}
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

// exchange sends bytes unchanged over HTTP/1.1 and returns the first response.
func (p *proxy) exchange(t *testing.T, certificate *tls.Certificate, request string) response {
	t.Helper()
	return readResponse(t, bufio.NewReader(p.raw(t, certificate, request)))
}

// readResponse reads a response over HTTP/1.1. It has no body if it switches protocols.
func readResponse(t *testing.T, from *bufio.Reader) response {
	t.Helper()
	res, err := http.ReadResponse(from, nil)
	must.Do(t, err)
	return must.Get(readAll(res))(t)
}

// upgradeTo returns a request to a subresource of a pod for another protocol, with more header lines.
func upgradeTo(protocol, subresource, header string) string {
	return "POST /api/v1/namespaces/d/pods/x/" + subresource + " HTTP/1.1\nHost: proxy\nConnection: Upgrade\nUpgrade: " +
		protocol + "\nContent-Length: 0\n" + header + "\n"
}

// switches sends jane's request for another protocol and expects that it is switched.
func (p *proxy) switches(t *testing.T, request string) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	conn := p.raw(t, p.jane(t), request)
	reader := bufio.NewReader(conn)
	if got := readResponse(t, reader); got.Code != http.StatusSwitchingProtocols {
		t.Fatalf("want the protocol switched, got %d: %s", got.Code, got.Body)
	}
	return conn, reader
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

func (c *stillClock) Since(then time.Time) time.Duration { return c.Now().Sub(then) }

// still sets the proxy's clock.
func still(c *stillClock) prepare { return func(_ *proxy, o *Options) { o.Clock = c } }
