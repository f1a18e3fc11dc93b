package proxy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestSmallBodiesCanBeSentAgain(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxHeldBody+1)
	for _, test := range []struct {
		name    string
		body    string
		unknown bool // the length
		expect  string
		want    bool
	}{
		{name: "a small one can", body: "hello", want: true},
		{name: "the largest that is held can", body: long[1:], want: true},
		{name: "a small one whose length is not announced can", body: "hello", unknown: true, want: true},
		{name: "an empty one whose length is not announced can", unknown: true, want: true},
		{name: "one the client waits with can", body: "hello", expect: "100-continue", want: true},
		{name: "a large one cannot", body: long},
		{name: "a large one whose length is not announced cannot", body: long, unknown: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			req := &http.Request{
				Header:        http.Header{},
				ContentLength: int64(len(test.body)),
				Body:          io.NopCloser(strings.NewReader(test.body)),
			}
			if test.unknown {
				req.ContentLength, req.TransferEncoding = -1, []string{"chunked"}
			}
			if test.expect != "" {
				req.Header.Set("Expect", test.expect)
			}
			if err := holdBody(req, nil); err != nil {
				t.Fatal(err)
			}
			if (req.GetBody != nil) != test.want {
				t.Fatalf("want it replayable: %t", test.want)
			}
			if req.Header.Get("Expect") != "" {
				t.Error("want the client told to go on, and not to wait for the API server")
			}
			bodies := []io.Reader{req.Body}
			if test.want {
				if got := req.ContentLength; got != int64(len(test.body)) || req.TransferEncoding != nil {
					t.Errorf("want the length known, got %d and %v", got, req.TransferEncoding)
				}
				again, err := req.GetBody()
				if err != nil {
					t.Fatal(err)
				}
				bodies = append(bodies, again)
			}
			for _, body := range bodies {
				if text, err := io.ReadAll(body); err != nil || string(text) != test.body {
					t.Errorf("want the body of %d bytes, got %d and %v", len(test.body), len(text), err)
				}
			}
		})
	}
	for name, announced := range map[string]int64{"a short one": 10, "a long one": maxHeldBody + 10} {
		req := &http.Request{
			Header: http.Header{}, ContentLength: announced, Body: io.NopCloser(strings.NewReader("short")),
		}
		var broken *clientBodyError
		if err := holdBody(req, nil); !errors.As(err, &broken) {
			t.Errorf("%s: want the client's body to blame, got %v", name, err)
		}
	}
}

func TestUpstreamStatus(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, test := range []struct {
		name   string
		method string
		err    error
		code   int32
		retry  int32

		problem upstreamProblem
	}{
		{"a request that was never sent can be made again", "POST", dial, 503, 1, problemUnreachable},
		{"also when the name is not known", "POST", &net.DNSError{Err: "no such host"}, 503, 1, problemUnreachable},
		{"also when TLS takes too long", "POST", errors.New("net/http: TLS handshake timeout"), 503, 1, problemUnreachable},
		{"a lost read can be made again", "GET", io.ErrUnexpectedEOF, 503, 1, problemLost},
		{"a lost write must not be made again by itself", "POST", io.ErrUnexpectedEOF, 503, 0, problemLost},
		{"GOAWAY with the body gone is for the client to try again", "PUT", errors.New("http2: Transport: cannot retry err " +
			"[x] after Request.Body was written"), 429, 1, problemRefusedStream},
		{"an identity too large is nobody's outage", "GET", errors.New("http2: request header list larger than peer's " +
			"advertised limit"), 431, 0, problemTooLarge},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var status apierrors.APIStatus
			problem, err := upstreamStatus(&http.Request{Method: test.method}, test.err)
			if problem != test.problem {
				t.Errorf("want problem %s, got %s", test.problem, problem)
			}
			if !errors.As(err, &status) {
				t.Fatalf("want a status, got %v", err)
			}
			got := status.Status()
			var retry int32
			if got.Details != nil {
				retry = got.Details.RetryAfterSeconds
			}
			if got.Code != test.code || retry != test.retry || got.Message == "" {
				t.Errorf("want %d with retry after %d, got %+v", test.code, test.retry, got)
			}
		})
	}
}

func TestUpstreamTakesNoCredentials(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t, "HTTP/2.0")
	config := api.config("a-token")
	config.Username, config.Password = "root", "root"
	ca := newCA(t, "ca")
	pair, err := ca.IssueClient(identityFor("root", "system:masters"), ca.Certificate().NotBefore, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	config.CertData, config.KeyData = pair.CertPEM, pair.KeyPEM
	up, err := newUpstream(config, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer up.close()
	for _, transport := range append(slices.Clone(up.streams), up.upgrade) {
		if c := transport.TLSClientConfig; len(c.Certificates) != 0 || c.GetClientCertificate != nil || c.InsecureSkipVerify {
			t.Error("want no client certificate")
		}
	}
}

// TestWhatGoesOverWhich: a request that is all here has a connection of HTTP/1.1 to itself, out of a pool. Streams share
// those of HTTP/2.
func TestWhatGoesOverWhich(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	jane := p.as(t, "jane")
	for _, test := range []struct{ name, method, path, body, want string }{
		{"a get", "GET", "/api/v1/namespaces/d/pods/x", "", "HTTP/1.1"},
		{"a list", "GET", "/api/v1/pods", "", "HTTP/1.1"},
		{"a write", "PUT", "/api/v1/namespaces/d/pods/x", "{}", "HTTP/1.1"},
		{"a body that is still on its way", "PUT", "/api/v1/pods/x", strings.Repeat("x", maxHeldBody+1), "HTTP/2.0"},
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

// TestAProxyBeforeTheAPIServer has requests take the way that knows proxies.
func TestAProxyBeforeTheAPIServer(t *testing.T) {
	t.Parallel()
	config := newAPIServer(t, "HTTP/2.0").config("")
	config.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy.example.com:3128"})
	up, err := newUpstream(config, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer up.close()
	if up.plain != nil {
		t.Error("want requests sent with the streams, which go through the proxy")
	}
}
