package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestSlowBodiesEnd checks that an announced body must arrive within a time limit, for every client and every response.
func TestSlowBodiesEnd(t *testing.T) {
	t.Parallel()
	const request = "POST /api/v1/namespaces/d/configmaps HTTP/1.1\nHost: proxy\n"
	for _, test := range []struct {
		name, user, request, want string
	}{
		{name: "of nobody", request: request + "Authorization: Bearer x\nContent-Length: 5\n\n", want: "HTTP/1.1 401 "},
		{name: "of a small length", user: "jane", request: request + "Content-Length: 5\n\nhell", want: "HTTP/1.1 400 "},
		{name: "of a large length", user: "jane", request: request + "Content-Length: 500000\n\nhell", want: "HTTP/1.1 400 "},
		{name: "in chunks", user: "jane", request: request + "Transfer-Encoding: chunked\n\n4\nhell\n", want: "HTTP/1.1 400 "},
		{name: "of a stream that is refused", request: "POST /api/v1/namespaces/d/pods/p/proxy/ HTTP/1.1\nHost: " +
			"proxy\nAuthorization: Bearer x\nContent-Length: 5\n\n", want: "HTTP/1.1 401 "},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, func(_ *proxy, o *Options) { o.BodyTimeout = 100 * time.Millisecond })
			response, err := io.ReadAll(p.raw(t, p.certificateOf(t, test.user), test.request))
			if err != nil || !strings.HasPrefix(string(response), test.want) {
				t.Errorf("want %q and the end of the connection, got %q, %v", test.want, response, err)
			}
		})
	}
	t.Run("over HTTP/2", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, func(_ *proxy, o *Options) { o.BodyTimeout = 100 * time.Millisecond })
		c := p.rawHTTP2(t, p.jane(t))
		length := [2]string{"content-length", "5"}
		c.request(t, 1, true, append(pseudo("POST", "/api/v1/namespaces/d/configmaps"), length)...)
		if got := c.status(t, 1); got != http.StatusBadRequest {
			t.Errorf("want 400 over HTTP/2, got %d", got)
		}
	})
}

// TestBrokenBodies breaks off a body after a part of it is at the API server. That is an error of the client, not of
// the API server.
func TestBrokenBodies(t *testing.T) {
	t.Parallel()
	const sent = 256 << 10
	p := startProxy(t)
	p.api.serves(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.WriteHeader(http.StatusTeapot)
	})
	got := p.exchange(t, p.jane(t), fmt.Sprintf(
		"POST /api/v1/namespaces/d/configmaps HTTP/1.1\nHost: proxy\nTransfer-Encoding: chunked\n\n%x\n%s\nno chunk\n",
		sent, strings.Repeat("a", sent),
	))
	if got.Code != http.StatusBadRequest || !strings.Contains(got.Body, "request body could not be read") {
		t.Errorf("want 400 for the body, got %d: %s", got.Code, got.Body)
	}
}

// TestBodyTimeoutIsForBodies has everything else take longer than the body timeout: the response to a body that arrived
// in time, and the body of a stream.
func TestBodyTimeoutIsForBodies(t *testing.T) {
	t.Parallel()
	const patience = 2 * time.Second
	wait := func() { time.Sleep(patience + patience/4) }
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, func(_ *proxy, o *Options) { o.BodyTimeout = patience })
			p.api.serves(func(w http.ResponseWriter, req *http.Request) {
				if !strings.Contains(req.URL.Path, "/proxy/") {
					wait()
				}
				_, _ = io.Copy(w, req.Body)
			})
			client := p.as(t, "jane")
			if protocol == "HTTP/1.1" {
				client.Transport.(*http.Transport).Protocols = new(http.Protocols)
				client.Transport.(*http.Transport).Protocols.SetHTTP1(true)
			}
			stream, end := io.Pipe()
			go func() {
				_, _ = io.WriteString(end, "hel")
				wait()
				_, _ = io.WriteString(end, "lo")
				_ = end.Close()
			}()
			for path, body := range map[string]io.Reader{
				"/api/v1/namespaces/d/configmaps":         strings.NewReader("hello"),
				"/api/v1/namespaces/d/secrets":            io.MultiReader(strings.NewReader("hello")), // of unknown length
				"/api/v1/namespaces/d/pods/p/proxy/write": stream,
			} {
				t.Run(path, func(t *testing.T) {
					req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+p.address+path, body))(t)
					res, err := client.Do(req)
					must.Do(t, err)
					defer func() { _ = res.Body.Close() }()
					text, err := io.ReadAll(res.Body)
					if err != nil || res.StatusCode != http.StatusOK || string(text) != "hello" || res.Proto != protocol {
						t.Errorf("want hello over %s, got %s over %s, %q, %v", protocol, res.Status, res.Proto, text, err)
					}
				})
			}
		})
	}
}
