package proxy

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

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
			want        int64
		}{
			{"discovery by many clients", 20, 10, "/apis/group-%d/v1", 5},
			{"long lists that are read with a pause", 6, 2, "/long/%d", long},
			{"watches of one operator at once", 1, 120, "/api/v1/pods?watch=1&n=%d", 5},
		} {
			t.Run(fmt.Sprintf("%s, %d processors", test.name, processors), func(t *testing.T) {
				t.Parallel()
				p := startProxy(t, shippedFor(processors))
				p.api.serves(func(w http.ResponseWriter, req *http.Request) {
					if strings.HasPrefix(req.URL.Path, "/long") {
						_, _ = w.Write(content)
						return
					}
					_, _ = io.WriteString(w, "hello")
				})
				var asking sync.WaitGroup
				for i := range test.users {
					client := p.as(t, fmt.Sprintf("user-%d", i))
					p.get(t, client, "/a", nil) // otherwise Go's client opens a connection for each concurrent request
					for j := range test.each {
						asking.Go(func() {
							got := p.open(t.Context(), t, client, fmt.Sprintf(test.path, j))
							first, _ := io.CopyN(io.Discard, got.Body, long/4)
							runtime.Gosched()
							rest, err := io.Copy(io.Discard, got.Body)
							if err != nil || got.StatusCode != http.StatusOK || first+rest != test.want {
								t.Errorf("want %d bytes, got %d, %d and %v", test.want, got.StatusCode, first+rest, err)
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
				bad := http.Header{"Authorization": {"Bearer bad"}}
				return func() { _, _ = p.send(t.Context(), client, "GET", "/a", bad, nil) }
			},
			"large lists": func(t *testing.T, p *proxy) func() {
				t.Helper()
				client := p.as(t, "mallory")
				return func() { _, _ = p.send(t.Context(), client, "GET", "/long", nil, nil) }
			},
			"large lists that are not read": func(t *testing.T, p *proxy) func() {
				t.Helper()
				certificate := clientCertificate(t, p.signerCA, "mallory")
				return func() {
					c := p.rawHTTP2(t, certificate)
					c.readNothing(t)
					for i := range uint32(10) {
						c.request(t, 2*i+1, false, pseudo("GET", "/long")...)
					}
					_ = c.conn.Close()
				}
			},
		} {
			t.Run(fmt.Sprintf("%s, %d processors", name, processors), func(t *testing.T) {
				t.Parallel()
				p := startProxy(t, shippedFor(processors))
				piece := make([]byte, 1<<20)
				p.api.serves(func(w http.ResponseWriter, req *http.Request) {
					if req.URL.Path != "/long" {
						_, _ = io.WriteString(w, "hello")
						return
					}
					for range 4 {
						if _, err := w.Write(piece); err != nil {
							return
						}
					}
				})
				attack := flood(t, p)
				var over atomic.Bool
				var attacking sync.WaitGroup
				for range 3 {
					attacking.Go(func() {
						for !over.Load() {
							attack()
						}
					})
				}
				known := p.as(t, "jane")
				for i := range 8 {
					p.checkServed(t, known, p.as(t, fmt.Sprintf("new-%d", i)))
				}
				p.withinMemory(t)
				over.Store(true)
				attacking.Wait()
			})
		}
	}
}
