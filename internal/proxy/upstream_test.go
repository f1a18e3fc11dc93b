package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
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

// forward copies both ways until one side ends, and closes both.
func forward(a, b net.Conn) {
	defer func() { _ = errors.Join(a.Close(), b.Close()) }()
	go func() {
		_, _ = io.Copy(b, a)
		_ = b.Close()
	}()
	_, _ = io.Copy(a, b)
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
	reset := func(_ *proxy, conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1)) // after an earlier reset, the connection may count as never established
		_ = conn.(*net.TCPConn).SetLinger(0)
	}
	wait := func(_ *proxy, conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	// over responds over TLS, with the API server's certificate, once it has received a request.
	over := func(response string) func(*proxy, net.Conn) {
		return func(p *proxy, conn net.Conn) {
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
		behave func(p *proxy, conn net.Conn)
		// Whether a write may be retried. A read always may.
		write bool
	}{
		{"closes the connection at once", func(*proxy, net.Conn) {}, true},
		{"resets the connection as it begins to speak", reset, true},
		{"speaks another protocol", func(p *proxy, conn net.Conn) {
			_, _ = io.WriteString(conn, "220 mail.example.com ESMTP\r\n")
			wait(p, conn)
		}, true},
		{"does not respond to TLS", wait, true},
		{"has a certificate of another CA", func(p *proxy, conn net.Conn) {
			_ = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*p.serving.Load()}}).Handshake()
		}, true},
		{"breaks off after the request", over(""), false},
		{"breaks off in the header", over("HTTP/1.1 200 OK\r\nContent-Ty"), false},
		{"responds with something else than HTTP", over("+OK\r\n\r\n"), false},
		{"responds with a header of no end", over("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 12<<20)), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p, led := startLed(t)
			led(badUpstream(t, func(conn net.Conn) { test.behave(p, conn) }))
			client := p.as(t, "jane")
			checkUnavailable(t, p.get(t, client, "/api/v1/nodes", nil), true)
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

// TestWhatGoesOverWhich checks that a request whose body is in memory has an exclusive, pooled HTTP/1.1 connection, and
// that streams share HTTP/2 connections.
func TestWhatGoesOverWhich(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	jane := p.as(t, "jane")
	for _, test := range []struct{ name, method, path, body, want string }{
		{"a get", "GET", "/api/v1/namespaces/d/pods/x", "", "HTTP/1.1"},
		{"a list", "GET", "/api/v1/pods", "", "HTTP/1.1"},
		{"a write", "PUT", "/api/v1/namespaces/d/pods/x", "{}", "HTTP/1.1"},
		{"a body that is still on its way", "PUT", "/api/v1/pods/x", strings.Repeat("x", listener.MaxHeldBody+1), "HTTP/2.0"},
		{"a watch", "GET", "/api/v1/pods?watch=1", "", "HTTP/2.0"},
		{"logs", "GET", "/api/v1/namespaces/d/pods/x/log?follow=1", "", "HTTP/2.0"},
		{"a program in the cluster", "GET", "/api/v1/namespaces/d/services/x/proxy/", "", "HTTP/2.0"},
	} {
		before := len(p.api.requests())
		if got := p.do(t, jane, test.method, test.path, nil, test.body); got.Code != http.StatusOK {
			t.Errorf("%s: want 200, got %d", test.name, got.Code)
			continue
		}
		if got := p.api.requests()[before].Proto; got != test.want {
			t.Errorf("%s: want %s, got %s", test.name, test.want, got)
		}
	}
}
