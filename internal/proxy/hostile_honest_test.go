package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

// fetch sends a request and reads the whole response with read, which may be slow.
func (p *proxy) fetch(
	ctx context.Context,
	client *http.Client,
	path string,
	read func(io.Reader) (int, error),
) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+p.address+path, nil)
	if err != nil {
		return 0, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	n, err := read(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return n, err
}

func discard(body io.Reader) (int, error) {
	n, err := io.Copy(io.Discard, body)
	return int(n), err
}

// withinMemory fails the test when clients hold more than their limits.
func (p *proxy) withinMemory(t *testing.T) {
	t.Helper()
	if got := p.FlowControl.Memory(); got.Users > got.MostUsers || got.Unauthenticated > got.MostUnauthenticated {
		t.Errorf("want memory bounded, got %+v", got)
	}
}

// TestHonestHeavyLoads has honest users cause much load, at the default limits, with one processor and with two. None
// of their requests fails, no response is cut off, and memory stays within its limit.
func TestHonestHeavyLoads(t *testing.T) {
	t.Parallel()
	const long = 4 << 20
	content := bytes.Repeat([]byte("0123456789abcde\n"), long/16)
	for _, processors := range []int{1, 2} {
		for _, test := range []struct {
			name        string
			users, each int
			path        string
			read        func(io.Reader) (int, error)
			want        int
		}{
			{name: "discovery by many clients", users: 20, each: 10, path: "/apis/group-%d/v1", read: discard, want: 5},
			{
				name: "long lists that are read with a pause", users: 6, each: 2, path: "/long/%d", want: long,
				read: func(body io.Reader) (int, error) {
					first, err := io.CopyN(io.Discard, body, long/4)
					if err != nil {
						return int(first), err
					}
					runtime.Gosched()
					rest, err := discard(body)
					return int(first) + rest, err
				},
			},
			{name: "watches of one operator at once", users: 1, each: 120, path: "/api/v1/pods?watch=1&n=%d", read: discard, want: 5},
		} {
			t.Run(fmt.Sprintf("%s, %d processors", test.name, processors), func(t *testing.T) {
				t.Parallel()
				p := startProxy(t, shippedFor(processors))
				p.api.set(func() {
					p.api.serve = func(w http.ResponseWriter, req *http.Request) {
						if strings.HasPrefix(req.URL.Path, "/long") {
							_, _ = w.Write(content)
							return
						}
						_, _ = io.WriteString(w, "hello")
					}
				})
				var asking sync.WaitGroup
				for i := range test.users {
					client := p.as(t, fmt.Sprintf("user-%d", i))
					p.get(t, client, "/a", nil) // otherwise Go's client opens a connection for each concurrent request
					for j := range test.each {
						asking.Go(func() {
							got, err := p.fetch(t.Context(), client, fmt.Sprintf(test.path, j), test.read)
							if err != nil || got != test.want {
								t.Errorf("want %d bytes, got %d and %v", test.want, got, err)
							}
						})
					}
				}
				asking.Wait()
				p.withinMemory(t)
			})
		}
	}
}

// shippedFor sets the limits of the default pod with this number of processors.
func shippedFor(processors int) prepare {
	return func(_ *proxy, o *Options) {
		o.Processors = processors
		o.FlowControl = flowcontrol.New(flowcontrol.LimitsFor(flowcontrol.DefaultMemory, processors))
	}
}

// TestHonestUsersBesideFloods has unauthenticated clients and one user overload the proxy while others connect and send
// requests, with one processor and with two. No request of the others fails, and memory stays within its limit.
func TestHonestUsersBesideFloods(t *testing.T) {
	t.Parallel()
	for _, processors := range []int{1, 2} {
		for name, flood := range map[string]func(t *testing.T, p *proxy) func(){
			"handshakes": func(_ *testing.T, p *proxy) func() {
				config := p.clientTLS(nil)
				return func() {
					if conn, err := tls.Dial("tcp", p.address, config); err == nil {
						_ = conn.Close()
					}
				}
			},
			"bad tokens": func(t *testing.T, p *proxy) func() {
				t.Helper()
				client := p.client(t, nil)
				return func() {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.address+"/a", nil)
					if err != nil {
						return
					}
					req.Header.Set("Authorization", "Bearer bad")
					if res, err := client.Do(req); err == nil {
						_ = res.Body.Close()
					}
				}
			},
			"large lists": func(t *testing.T, p *proxy) func() {
				t.Helper()
				client := p.as(t, "mallory")
				return func() { _, _ = p.fetch(t.Context(), client, "/long", discard) }
			},
			"large lists that are not read": func(t *testing.T, p *proxy) func() {
				t.Helper()
				certificate := clientCertificate(t, p.signerCA, "mallory")
				return func() {
					c := p.rawHTTP2(t, certificate)
					c.readNothing(t)
					for i := range uint32(10) {
						c.request(t, 2*i+1, false, false, pseudo("GET", "/long")...)
					}
					_ = c.conn.Close()
				}
			},
		} {
			t.Run(fmt.Sprintf("%s, %d processors", name, processors), func(t *testing.T) {
				t.Parallel()
				p := startProxy(t, shippedFor(processors))
				piece := make([]byte, 1<<20)
				p.api.set(func() {
					p.api.serve = func(w http.ResponseWriter, req *http.Request) {
						if req.URL.Path != "/long" {
							_, _ = io.WriteString(w, "hello")
							return
						}
						for range 4 {
							if _, err := w.Write(piece); err != nil {
								return
							}
						}
					}
				})
				attack := flood(t, p)
				over := make(chan struct{})
				var attacking sync.WaitGroup
				for range 3 {
					attacking.Go(func() {
						for !isClosed(over) {
							attack()
						}
					})
				}
				known := p.as(t, "jane")
				for i := range 8 {
					for _, client := range []*http.Client{known, p.as(t, fmt.Sprintf("new-%d", i))} {
						if got := p.get(t, client, "/a", nil); got.Code != http.StatusOK {
							t.Errorf("want honest users served, got %d: %s", got.Code, got.Body)
						}
					}
				}
				p.withinMemory(t)
				close(over)
				attacking.Wait()
			})
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
