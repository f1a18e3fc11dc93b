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

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

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
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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

// TestUnavailableInTheClientsEncoding checks that an error has the encoding that the client asked for, and a readable
// one if that is not supported.
func TestUnavailableInTheClientsEncoding(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.token.set("")
	client := p.as(t, "jane")
	const message = "the proxy has no credential for the API server yet"
	for _, test := range []struct{ accept, contentType string }{
		{"", "application/json"},
		{"*/*", "application/json"},
		{"application/json", "application/json"},
		{"application/yaml", "application/yaml"},
		{"application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"},
		{"application/vnd.kubernetes.protobuf, */*", "application/vnd.kubernetes.protobuf"},
		{"application/cbor", "application/json"},
		{"application/vnd.kubernetes.protobuf,application/json", "application/vnd.kubernetes.protobuf"},
		{"application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/json"},
		{"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json"},
		{"application/json;stream=watch", "application/json"},
		{"text/html", "application/json"},
		{"nonsense//;;", "application/json"},
	} {
		header := http.Header{}
		if test.accept != "" {
			header.Set("Accept", test.accept)
		}
		got := p.get(t, client, "/api/v1/nodes", header)
		contentType, _, _ := strings.Cut(got.Header.Get("Content-Type"), ";")
		if got.Code != http.StatusServiceUnavailable || got.Header.Get("Retry-After") != "1" ||
			contentType != test.contentType {
			t.Errorf(
				"%q: got %d, Retry-After %q, %q",
				test.accept,
				got.Code,
				got.Header.Get("Retry-After"),
				got.Header.Get("Content-Type"),
			)
			continue
		}
		serializer := request.NewSerializer()
		var decoded runtime.Object
		for _, info := range serializer.SupportedMediaTypes() {
			if info.MediaType == contentType {
				var err error
				if decoded, _, err = info.Serializer.Decode([]byte(got.Body), nil, &metav1.Status{}); err != nil {
					t.Errorf("%q: %v in %q", test.accept, err, got.Body)
				}
			}
		}
		if status, ok := decoded.(*metav1.Status); !ok || status.Message != message || status.Kind != "Status" ||
			status.Code != 503 {
			t.Errorf("%q: got %s", test.accept, cmp.Diff(message, decoded))
		}
	}
}
