package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

type dialing = func(ctx context.Context, network, address string) (net.Conn, error)

// badUpstream returns a dialer to a server that calls behave for each connection.
func badUpstream(t *testing.T, behave func(net.Conn)) dialing {
	t.Helper()
	address := listen(t, behave)
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
}

// listen returns the address of a server that calls behave for each connection, and then closes it.
func listen(t *testing.T, behave func(net.Conn)) (address string) {
	t.Helper()
	listener := listenHere(t)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				behave(conn)
			}()
		}
	}()
	return listener.Addr().String()
}

// startLed runs a proxy, and returns a function that redirects its forwarded requests. The agent's own requests are not
// redirected.
func startLed(t *testing.T) (p *proxy, lead func(dialing)) {
	t.Helper()
	var to atomic.Pointer[dialing]
	p = startProxy(t, func(_ *proxy, o *Options) {
		o.Upstream.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if dial := to.Load(); dial != nil {
				return (*dial)(ctx, network, address)
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}
	})
	return p, func(dial dialing) {
		to.Store(&dial)
		p.upstream.Close()
	}
}

// TestUpstreamMisbehaves replaces the API server with one that sends something else, or that breaks off. The client
// always gets a Status that says whether to retry. It never gets an empty response, or a partial one that seems
// complete.
func TestUpstreamMisbehaves(t *testing.T) {
	t.Parallel()
	reset := func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1)) // after an earlier reset, the connection may count as never established
		_ = conn.(*net.TCPConn).SetLinger(0)
	}
	wait := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	// over responds over TLS, with the API server's certificate, once it has received a request.
	over := func(p *proxy, response string) func(net.Conn) {
		return func(conn net.Conn) {
			config := p.api.TLS.Clone()
			config.NextProtos = []string{"http/1.1"}
			server := tls.Server(conn, config)
			defer server.Close() //nolint:errcheck // however it went
			if _, err := http.ReadRequest(bufio.NewReader(server)); err == nil {
				_, _ = io.WriteString(server, response)
			}
		}
	}
	for _, test := range []struct {
		name   string
		behave func(p *proxy) func(net.Conn)
		// Whether a read and a write may be retried.
		read, write bool
	}{
		{"closes the connection at once", func(*proxy) func(net.Conn) { return func(net.Conn) {} }, true, true},
		{"resets the connection as it begins to speak", func(*proxy) func(net.Conn) { return reset }, true, true},
		{"speaks another protocol", func(*proxy) func(net.Conn) {
			return func(conn net.Conn) { _, _ = io.WriteString(conn, "220 mail.example.com ESMTP\r\n"); wait(conn) }
		}, true, true},
		{"does not response to TLS", func(*proxy) func(net.Conn) { return wait }, true, true},
		{"has a certificate of another CA", func(p *proxy) func(net.Conn) {
			return func(conn net.Conn) {
				_ = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*p.serving.Load()}}).Handshake()
			}
		}, true, true},
		{"breaks off after the request", func(p *proxy) func(net.Conn) { return over(p, "") }, true, false},
		{
			"breaks off in the header", func(p *proxy) func(net.Conn) { return over(p, "HTTP/1.1 200 OK\r\nContent-Ty") }, true,
			false,
		},
		{
			"responds with something else than HTTP", func(p *proxy) func(net.Conn) { return over(p, "+OK\r\n\r\n") }, true,
			false,
		},
		{"responds with a header of no end", func(p *proxy) func(net.Conn) {
			return over(p, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 12<<20))
		}, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p, led := startLed(t)
			led(badUpstream(t, test.behave(p)))
			client := p.as(t, "jane")
			checkUnavailable(t, p.get(t, client, "/api/v1/nodes", nil), test.read)
			checkUnavailable(t, p.do(t, client, "POST", "/api/v1/namespaces/d/pods", nil, "{}"), test.write)
			if err := p.Ready(); err != nil {
				t.Errorf("want ready: every replica is as badly off, got %v", err)
			}
		})
	}
}

// TestErrorsInTheClientsEncoding checks that errors have the encoding that the client asked for, and a readable one if
// that is not supported: those of the forwarder, and denials.
func TestErrorsInTheClientsEncoding(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.token.set("")
	p.api.allows(allowing("list nodes"))
	client := p.as(t, "jane")
	serializer := request.NewSerializer()
	const asJSON, asProtobuf = "application/json", "application/vnd.kubernetes.protobuf"
	for _, test := range []struct{ accept, contentType string }{
		{"", asJSON},
		{"*/*", asJSON},
		{asJSON, asJSON},
		{"application/yaml", "application/yaml"},
		{asProtobuf, asProtobuf},
		{asProtobuf + ", */*", asProtobuf},
		{"application/cbor", asJSON},
		{asProtobuf + "," + asJSON, asProtobuf},
		{"application/json;as=Table;v=v1;g=meta.k8s.io,application/json", asJSON},
		{"application/json;as=Table;v=v1;g=meta.k8s.io", asJSON},
		{"application/json;stream=watch", asJSON},
		{"text/html", asJSON},
		{"nonsense//;;", asJSON},
	} {
		header := http.Header{}
		if test.accept != "" {
			header.Set("Accept", test.accept)
		}
		for _, want := range []struct {
			path, retry, message string
			code                 int
		}{
			{"/api/v1/nodes", "1", "the proxy has no credential for the API server yet", 503},
			{"/api/v1/pods", "", `pods is forbidden: User "jane" cannot list resource "pods" in API group "" at the cluster ` +
				"scope: " + identity.DecisionMadeBy, 403},
		} {
			got := p.get(t, client, want.path, header)
			info, ok := runtime.SerializerInfoForMediaType(serializer.SupportedMediaTypes(), test.contentType)
			if got.Code != want.code || got.Header.Get("Retry-After") != want.retry ||
				got.Header.Get("Content-Type") != test.contentType || !ok {
				t.Errorf("%q: got %d, %v", test.accept, got.Code, got.Header)
				continue
			}
			decoded, _, err := info.Serializer.Decode([]byte(got.Body), nil, &metav1.Status{})
			if status, ok := decoded.(*metav1.Status); err != nil || !ok || status.Message != want.message ||
				status.Kind != "Status" || int(status.Code) != want.code {
				t.Errorf("%q: want %q, got %v and %v", test.accept, want.message, decoded, err)
			}
		}
	}
}
