package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// TestBrokenResponsesStayBroken has the API server, or a program behind it, break off a response. The client must not
// take it for complete.
func TestBrokenResponsesStayBroken(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"less than its length": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"items\":[",
		"no last chunk":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n{\"items\":[\r\n",
		"a broken chunk":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n{\"items\":[\r\nzz\r\n",
	} {
		for _, path := range []string{"/api/v1/pods", "/api/v1/pods?watch=1", "/api/v1/namespaces/d/services/x/proxy/"} {
			t.Run(name+" of "+path, func(t *testing.T) {
				t.Parallel()
				p := newProxyTo(t, newAPIServer(t, "HTTP/1.1"))
				p.start(t)
				p.api.serves(func(w http.ResponseWriter, _ *http.Request) {
					conn, _, err := http.NewResponseController(w).Hijack()
					if err != nil {
						panic(err)
					}
					_, _ = io.WriteString(conn, text)
					_ = conn.Close()
				})
				jane := p.jane(t)
				if got, err := p.send(t.Context(), p.client(t, jane), "GET", path, nil, nil); err == nil {
					t.Errorf("HTTP/2: want an error, got all of %v", got)
				}
				res, err := http.ReadResponse(bufio.NewReader(p.raw(t, jane, get(path))), nil)
				if err != nil {
					return
				}
				if got, err := readAll(res); err == nil {
					t.Errorf("HTTP/1.1: want an error, got all of %v", got)
				}
			})
		}
	}
}

// TestInformationalResponses has the API server send informational responses before its response.
func TestInformationalResponses(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.serves(func(w http.ResponseWriter, _ *http.Request) {
		for range 5 {
			w.Header().Set("Link", "</x>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
		}
		_, _ = io.WriteString(w, "at last")
	})
	hints := 0
	ctx := httptrace.WithClientTrace(t.Context(),
		&httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { hints++; return nil }})
	res, err := p.send(ctx, p.as(t, "jane"), "GET", "/a", nil, nil)
	if err != nil || res.Code != http.StatusOK || res.Body != "at last" || hints != 5 {
		t.Errorf("want five hints and then the response, got %d, %d and %q, %v", hints, res.Code, res.Body, err)
	}
	for name, want := range request.SecurityHeaders {
		if got := res.Header[name]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: want %q, got %q", name, want, got)
		}
	}
}

// TestRedirectsAreTheClients checks that the proxy passes redirects on to the client. It must not follow them, because
// that would send its upstream credential to another server.
func TestRedirectsAreTheClients(t *testing.T) {
	t.Parallel()
	other := newAPIServer(t, "HTTP/2.0")
	p := startProxy(t)
	p.api.serves(func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, other.URL+"/steal", http.StatusTemporaryRedirect)
	})
	for _, upgrade := range []string{
		"", "Connection: Upgrade\nUpgrade: SPDY/3.1\n", "Connection: Upgrade\nUpgrade: websocket\n",
	} {
		got := p.exchange(t, p.jane(t), "GET /api/v1/namespaces/d/pods/x/exec HTTP/1.1\nHost: proxy\n"+upgrade+"\n")
		if got.Code != http.StatusTemporaryRedirect || got.Header.Get("Location") != other.URL+"/steal" {
			t.Errorf("want the redirect, got %d %v", got.Code, got.Header)
		}
	}
	if n := len(other.requests()); n != 0 {
		t.Errorf("want nothing sent to the other, got %d requests", n)
	}
}

// TestNamesInCertificates issues client certificates for names that would be misread in a header.
func TestNamesInCertificates(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	for name, test := range map[string]struct {
		user   string
		groups []string
	}{
		"CR LF in the name":     {user: "jane\r\nImpersonate-Group: system:masters"},
		"LF in the name":        {user: "jane\nx"},
		"NUL in the name":       {user: "jane\x00"},
		"CR in a group":         {user: "jane", groups: []string{"a", "b\rc"}},
		"NUL in a group":        {user: "jane", groups: []string{"a\x00"}},
		"space around the name": {user: " jane"},
		"an empty group":        {user: "jane", groups: []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			pair, err := p.signerCA.IssueClient(certs.ClientIdentity{Username: test.user, Groups: test.groups}, time.Now(),
				time.Hour)
			if err != nil {
				t.Logf("not even issued: %v", err)
				return
			}
			got := p.get(t, p.client(t, keyPair(t, pair)), "/api/v1/nodes", nil)
			if got.Code < 400 || len(p.api.requests()) != 0 {
				t.Errorf("want a refusal and nothing sent on, got %d: %s", got.Code, got.Body)
			}
		})
	}
}

// TestEmptyCredentials checks that an empty credential does not authenticate.
func TestEmptyCredentials(t *testing.T) {
	t.Parallel()
	for _, anonymous := range []int{403, 401} {
		p := newProxy(t)
		p.api.anonymous = func(string) int { return anonymous }
		p.api.tokens[""] = authenticationv1.UserInfo{Username: "root", Groups: []string{"system:masters"}}
		p.api.tokens["blank"] = authenticationv1.UserInfo{Username: " ", Groups: []string{"system:masters"}}
		p.api.tokens["unnamed"] = authenticationv1.UserInfo{Groups: []string{"system:masters"}}
		p.start(t)
		for _, header := range []string{
			"", "Authorization:\n", "Authorization: Bearer\n", "Authorization: Bearer \n", "Authorization: Bearer  x\n", "Authorization: Bearer\t\n",
			"Authorization: Basic Og==\n", "Authorization: Basic\n", "Authorization: \" \"\n", "X-Remote-User: \n", "X-Remote-User: root\n",
			"Authorization:\nAuthorization: Bearer x\n",
			"Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io., " +
				"v5.channel.k8s.io\n",
			"Authorization: Bearer blank\n", "Authorization: Bearer unnamed\n",
		} {
			before := len(p.api.requests())
			code := p.exchange(t, nil, "GET /api/v1/nodes HTTP/1.1\nHost: proxy\n"+header+"\n").Code
			arrived := p.api.requests()[before:]
			if code == http.StatusUnauthorized && len(arrived) == 0 {
				continue
			}
			if anonymous == 401 || len(arrived) != 1 || arrived[0].Header.Get("Impersonate-User") != "system:anonymous" ||
				len(arrived[0].Header["Impersonate-Group"]) != 1 {
				t.Errorf("%q while anonymous users get %d: want nobody, got %d and %+v", header, anonymous, code, arrived)
			}
		}
		if len(p.api.reviewed) > 0 && p.api.reviewed[0] == "" {
			t.Error("want no review of an empty token")
		}
	}
}

// TestClientsStreamsAreNeverIdle sets all idle timeouts of client connections to a fraction of the time for which the
// streams are silent.
func TestClientsStreamsAreNeverIdle(t *testing.T) {
	t.Parallel()
	const timers, silence = 500 * time.Millisecond, 3 * time.Second
	p := newProxy(t)
	p.tune = func(s *Server) {
		s.http.IdleTimeout, s.http.ReadHeaderTimeout = timers, 4*timers // the latter also limits the handshake
		s.http.HTTP2.SendPingTimeout, s.http.HTTP2.PingTimeout = timers, 10*time.Second
	}
	p.start(t)
	p.api.serves(echoOr(func(w http.ResponseWriter, req *http.Request) {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(silence):
			_, _ = io.WriteString(w, "an event\n")
		case <-req.Context().Done():
		}
	}))
	jane := p.jane(t)
	for _, protocol := range []string{"SPDY/3.1", "websocket"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			conn, reader := p.switches(t, upgradeTo(protocol, "exec", ""))
			<-time.After(silence)
			_, _ = io.WriteString(conn, "still there\n")
			if got, err := reader.ReadString('\n'); err != nil || got != "STILL THERE\n" {
				t.Errorf("want a response after a long silence, got %q, %v", got, err)
			}
		})
	}
	for _, path := range []string{
		"/api/v1/pods?watch=1", "/api/v1/namespaces/d/pods/x/log?follow=true", "/api/v1/nodes/n/proxy/events",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			for _, protocol := range []string{"h2", "http/1.1"} {
				client := p.client(t, jane)
				if protocol == "http/1.1" {
					client.Transport.(*http.Transport).ForceAttemptHTTP2 = false
				}
				if got := p.get(t, client, path, nil); got.Code != http.StatusOK || got.Body != "an event\n" {
					t.Errorf("%s: want the event after a long silence, got %d %q", protocol, got.Code, got.Body)
				}
			}
		})
	}
}

// TestSlowHeadersEnd checks the time limit for a request header.
func TestSlowHeadersEnd(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	p.tune = func(s *Server) { s.http.ReadHeaderTimeout = 2 * time.Second } // also limits the handshake
	p.start(t)
	conn := p.raw(t, nil, "GET / HTTP/1.1\nHost: proxy\nX: ")
	if _, err := io.ReadAll(conn); err != nil {
		if timeout, ok := err.(net.Error); ok && timeout.Timeout() { //nolint:errorlint // a deadline of our own
			t.Error("want the connection closed")
		}
	}
}

// TestNothingSecretIsLogged reads the log at its highest level after requests of all kinds.
func TestNothingSecretIsLogged(t *testing.T) {
	t.Parallel()
	config := ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(10))
	logger := ktesting.NewLogger(ktesting.NopTL{}, config)
	p := newProxy(t)
	p.context = func(ctx context.Context) context.Context { return klog.NewContext(ctx, logger) }
	p.api.tokens["good-secret"] = authenticationv1.UserInfo{Username: "jane"}
	p.start(t)
	for _, header := range []string{
		"Authorization: Bearer good-secret\n", "Authorization: Bearer bad-secret\n",
		"Authorization: Basic YmFzaWMtc2VjcmV0\n", "Cookie: a=cookie-secret\n",
		"Authorization: Bearer bad-secret\nImpersonate-User: x\n",
		"Connection: Upgrade\nUpgrade: websocket\nCookie: a=cookie-secret\n",
		"Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Protocol: " +
			"base64url.bearer.authorization.k8s.io.YmFkLXNlY3JldA\n",
	} {
		got := p.exchange(t, nil, "GET /api/v1/nodes HTTP/1.1\nHost: proxy\n"+header+"\n")
		checkNoSecret(t, "a response", fmt.Sprint(got.Body, got.Header))
	}
	p.api.serves(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	p.exchange(t, nil, get("/api/v1/nodes", "Authorization: Bearer good-secret"))
	p.api.set(func() { p.api.failing = 500 })
	p.exchange(t, nil, get("/api/v1/nodes", "Authorization: Bearer other-secret"))
	log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	if !strings.Contains(log, "Forwarded request") {
		t.Errorf("want a log of all that is logged, got %s", log)
	}
	checkNoSecret(t, "the log", log)
}

func checkNoSecret(t *testing.T, where, text string) {
	t.Helper()
	for _, secret := range []string{"-secret", "YmFz", "YmFkLXNl", upstreamToken, agentToken} {
		for line := range strings.Lines(text) {
			if strings.Contains(line, secret) {
				t.Errorf("%q is in %s: %s", secret, where, line)
			}
		}
	}
}
