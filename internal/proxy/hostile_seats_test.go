package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// atOnce counts concurrent operations at the API server.
type atOnce struct{ now, most, all atomic.Int64 }

// count counts the start of an operation. Call the result at its end.
func (c *atOnce) count() func() {
	c.all.Add(1)
	n := c.now.Add(1)
	for last := c.most.Load(); n > last && !c.most.CompareAndSwap(last, n); last = c.most.Load() {
	}
	return func() { c.now.Add(-1) }
}

// TestRequestsOfAUserAreQueued has one user, or one unauthenticated client, send more requests than may be at the API
// server at a time. The rest waits, and others are not affected.
func TestRequestsOfAUserAreQueued(t *testing.T) {
	t.Parallel()
	const fit, asked = 64, 90
	for _, name := range []string{"greedy", ""} {
		t.Run("user "+name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			var busy atOnce
			release := make(chan struct{})
			p.api.serves(func(_ http.ResponseWriter, req *http.Request) {
				if strings.HasPrefix(req.URL.Path, "/slow") {
					defer busy.count()()
					select {
					case <-release:
					case <-req.Context().Done():
					}
				}
			})
			client := p.client(t, nil)
			if name != "" {
				client = p.as(t, name)
			}
			var all []<-chan response
			for i := range asked {
				all = append(all, p.begin(t.Context(), client, "GET", fmt.Sprintf("/slow/%d", i), nil))
			}
			eventually(t, func() bool { return busy.now.Load() >= fit })
			for who, path := range map[string]string{"jane": "/quick", "greedy": "/api/v1/pods?watch=1"} {
				p.get(t, p.as(t, who), path, nil).check(t, http.StatusOK, "want %s served", who)
			}
			close(release)
			checkCodes(t, all, http.StatusOK, asked)
			eventually(t, func() bool { return p.taken(flowcontrol.Forward)+p.waiting(flowcontrol.Forward) == 0 })
		})
	}
}

// TestASlowWebhookDelaysNoRead has more writes of one user than there are seats wait for a webhook. The user's reads
// are served meanwhile, and the other writes follow soon.
func TestASlowWebhookDelaysNoRead(t *testing.T) {
	t.Parallel()
	const fit, asked = 64, 80
	p := startProxy(t)
	release := make(chan struct{})
	var busy atOnce
	p.api.serves(func(_ http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost {
			defer busy.count()()
			<-release
		}
	})
	client := p.as(t, "ci")
	var all []<-chan response
	for range asked {
		all = append(all, p.begin(t.Context(), client, "POST", "/api/v1/namespaces/d/pods", strings.NewReader("{}")))
	}
	eventually(t, func() bool { return busy.now.Load() >= fit })
	p.get(t, client, "/api/v1/namespaces/d/pods/x", nil).check(t, http.StatusOK, "want a read served meanwhile")
	eventually(t, func() bool { return busy.now.Load() == asked }) // none was released
	close(release)
	checkCodes(t, all, http.StatusOK, asked)
}

// TestSlowBodiesHoldNothingAtTheAPIServer sends bodies byte by byte, in every encoding. Such a request is forwarded
// only when its body, or the first part of a large one, has arrived.
func TestSlowBodiesHoldNothingAtTheAPIServer(t *testing.T) {
	t.Parallel()
	const create = "POST /api/v1/namespaces/d/configmaps HTTP/1.1\nHost: x\n"
	large := strings.Repeat("x", listener.MaxHeldBody)
	for _, test := range []struct {
		name       string
		first      string // and the rest of the first part
		rest, want string
	}{
		{"a length", create + "Content-Length: 5\n\nhell", "o", "hello"},
		{"a length, when the client waits for 100 Continue", create + "Expect: 100-continue\nContent-Length: 5\n\nhell", "o", "hello"},
		{"chunks", create + "Transfer-Encoding: chunked\n\n4\nhell\n", "1\no\n0\n\n", "hello"},
		{
			"chunks, of which much is here", create + fmt.Sprintf("Transfer-Encoding: chunked\n\n%x\n%s", len(large), large[1:]),
			"x\n0\n\n", large,
		},
		{
			"a large length, of which much is here", create + fmt.Sprintf("Content-Length: %d\n\n%s", len(large)+1, large[1:]),
			"xy", large + "y",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			conn := p.raw(t, clientCertificate(t, p.signerCA, "mallory"), test.first)
			p.waitServing(t, 1)
			time.Sleep(100 * time.Millisecond)
			if p.begun(flowcontrol.Forward) != 0 {
				t.Error("want no seat taken before the body is here")
			}
			if got := p.api.arrived.Load(); got != 0 {
				t.Errorf("want nothing sent on before the body is here, got %d requests", got)
			}
			must.Get(io.WriteString(conn, crlf.Replace(test.rest)))(t)
			responses := bufio.NewReader(conn)
			response := readResponse(t, responses)
			if response.Code == http.StatusContinue {
				response = readResponse(t, responses)
			}
			got := p.api.requests()
			if response.Code != http.StatusOK || len(got) != 1 || got[0].Body != test.want || got[0].Broken {
				t.Errorf("want %d bytes of a body sent on, got %d and %d requests", len(test.want), response.Code, len(got))
			}
		})
	}
	t.Run("over HTTP/2, without a length", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t)
		c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "mallory"))
		c.request(t, 1, true, pseudo("POST", "/api/v1/namespaces/d/configmaps")...)
		must.Do(t, c.WriteData(1, false, []byte("hell")))
		p.waitServing(t, 1)
		time.Sleep(100 * time.Millisecond)
		if got := p.api.arrived.Load(); got != 0 {
			t.Errorf("want nothing sent on before the body is here, got %d requests", got)
		}
		must.Do(t, c.WriteData(1, true, []byte("o")))
		if got := c.status(t, 1); got != http.StatusOK || p.api.requests()[0].Body != "hello" {
			t.Errorf("want hello sent on, got %d and %q", got, p.api.requests()[0].Body)
		}
	})
}

// responseWindow is how much of a response the kernel holds.
const responseWindow = 256 << 10

// TestSlowClientsHoldNothingAtTheAPIServer requests responses larger than any window and reads nothing. The API server
// finishes them anyway, within the client's memory limit, and the client gets them when it begins to read.
func TestSlowClientsHoldNothingAtTheAPIServer(t *testing.T) {
	t.Parallel()
	const size, asked = 1 << 20, 6
	content := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
	for _, test := range []struct {
		name   string
		memory int64
		enough bool
	}{
		{"with memory for them", 256 << 20, true},
		{"with memory for less", 24 << 20, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, memory(test.memory))
			var busy atOnce
			p.api.serves(func(w http.ResponseWriter, _ *http.Request) {
				defer busy.count()()
				for rest := content; len(rest) > 0; rest = rest[min(len(rest), 10_000):] {
					if _, err := w.Write(rest[:min(len(rest), 10_000)]); err != nil {
						return
					}
				}
			})
			c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "mallory"))
			c.readNothing(t)
			for i := range uint32(asked) {
				c.request(t, 2*i+1, false, pseudo("GET", fmt.Sprintf("/large/%d", i))...)
			}
			eventually(t, func() bool { return busy.all.Load() == asked })
			if !test.enough {
				eventually(t, func() bool { return p.taken(flowcontrol.SlowClient) > 0 })
				if busy.now.Load() == 0 {
					t.Error("want an API server that still has to send")
				}
				if got := p.heldBy("mallory", flowcontrol.Response); got > test.memory/4 {
					t.Errorf("want at most %d bytes taken, got %d", test.memory, got)
				}
				return
			}
			eventually(t, func() bool { return busy.now.Load() == 0 })
			time.Sleep(slowAfter + 100*time.Millisecond)
			if got := p.taken(flowcontrol.SlowClient); got != 0 {
				t.Errorf("want none counted that keeps the API server busy, got %d", got)
			}
			if got := p.heldBy("mallory", flowcontrol.Response); got < asked*(size-responseWindow) {
				t.Errorf("want what waits in memory counted, got %d bytes", got)
			}
			got := c.readAll(t, asked)
			if len(got) != asked {
				t.Fatalf("want %d responses, got %d", asked, len(got))
			}
			for stream, body := range got {
				if !bytes.Equal(body, content) {
					t.Errorf("stream %d: want the response as it was, got %d bytes", stream, len(body))
				}
			}
			eventually(t, func() bool { return p.held(flowcontrol.Response) == 0 })
		})
	}
}

// readEverything opens the windows.
func (c *rawHTTP2) readEverything(t *testing.T) {
	t.Helper()
	const open = 1 << 30
	window := http2.Setting{ID: http2.SettingInitialWindowSize, Val: open}
	must.Do(t, errors.Join(c.WriteSettings(window), c.WriteWindowUpdate(0, open)))
}

// readAll opens the window and reads until n streams have ended. It returns their data.
func (c *rawHTTP2) readAll(t *testing.T, n int) map[uint32][]byte {
	t.Helper()
	c.readEverything(t)
	bodies := map[uint32][]byte{}
	for ended := 0; ended < n; {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("want %d streams to end, got %d and %v", n, ended, err)
		}
		if data, ok := frame.(*http2.DataFrame); ok {
			bodies[data.StreamID] = append(bodies[data.StreamID], data.Data()...)
			if data.StreamEnded() {
				ended++
			}
		}
	}
	return bodies
}

// TestBufferedResponsesBreakUnchanged has the API server break off a response while it is being buffered.
func TestBufferedResponsesBreakUnchanged(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	broken := make(chan struct{})
	p.api.serves(func(w http.ResponseWriter, _ *http.Request) {
		for range 8 {
			_, _ = w.Write(make([]byte, 128<<10))
		}
		close(broken)
		panic(http.ErrAbortHandler)
	})
	c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "mallory"))
	c.readNothing(t)
	c.request(t, 1, false, pseudo("GET", "/large")...)
	<-broken
	c.readEverything(t)
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("want the stream reset, got %v", err)
		}
		if _, ok := frame.(*http2.RSTStreamFrame); ok {
			break
		}
		if data, ok := frame.(*http2.DataFrame); ok && data.StreamEnded() {
			t.Fatal("want a response that broke off not to seem complete")
		}
	}
	eventually(t, func() bool { return p.held(flowcontrol.Response) == 0 })
}
