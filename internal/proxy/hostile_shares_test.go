package proxy

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
)

// TestRequestsInFlightAreBounded fills a share of requests or streams. What does not fit is refused at once, and
// others do not notice.
func TestRequestsInFlightAreBounded(t *testing.T) {
	t.Parallel()
	const fit, asked = 3, 10
	for name, test := range map[string]struct {
		change prepare
		who    string
		path   string
		want   int
	}{
		"requests of a user": {
			limit(budget.Requests, budget.PerUser, fit), "mallory", "/api/v1/pods/slow", http.StatusTooManyRequests,
		},
		"watches of a user": {
			limit(budget.Streams, budget.PerUser, fit), "mallory", "/api/v1/pods?watch=1&slow", http.StatusTooManyRequests,
		},
		"watches without a user": {
			limit(budget.Streams, budget.Unauthenticated, fit), "", "/api/v1/pods?watch=1&slow", http.StatusServiceUnavailable,
		},
		"requests of one address": {
			limit(budget.Requests, budget.PerAddress, fit), "mallory", "/api/v1/pods/slow", http.StatusTooManyRequests,
		},
		"requests of all together": {
			limit(budget.Requests, budget.Total, fit), "mallory", "/api/v1/pods/slow", http.StatusServiceUnavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, test.change)
			release := make(chan struct{})
			var inFlight atomic.Int64
			p.api.set(func() {
				p.api.serve = func(_ http.ResponseWriter, req *http.Request) {
					if strings.Contains(req.RequestURI, "slow") {
						inFlight.Add(1)
						select {
						case <-release:
						case <-req.Context().Done():
						}
					}
				}
			})
			client := p.client(t, nil)
			if test.who != "" {
				client = p.as(t, test.who)
				p.get(t, client, "/api/v1/nodes", nil) // the connection has a user from here on
				eventually(t, func() bool { return p.budget.Held(budget.Requests) == 0 })
			}
			codes := make(chan answer, asked)
			var group sync.WaitGroup
			for range asked {
				group.Go(func() { codes <- p.get(t, client, test.path, nil) })
			}
			for range asked - fit {
				got := <-codes
				if got.Code != test.want || got.Header.Get("Retry-After") == "" {
					t.Errorf("want %d with Retry-After, got %d: %s", test.want, got.Code, got.Body)
				}
			}
			eventually(t, func() bool { return inFlight.Load() == fit })
			if got := p.get(t, p.as(t, "jane"), "/api/v1/nodes", nil); got.Code != http.StatusOK {
				t.Errorf("want a newcomer served, got %d: %s", got.Code, got.Body)
			}
			close(release)
			group.Wait()
			eventually(t, func() bool {
				return p.budget.Held(budget.Requests) == 0 && p.budget.Held(budget.Streams) == 0 && p.budget.Held(budget.Bytes) == 0
			})
		})
	}
}

// TestSharesOfNewConnections has the first request on a connection hold more than the user's share. It is admitted as
// that of a stranger, and refused when its user is known.
func TestSharesOfNewConnections(t *testing.T) {
	t.Parallel()
	const share = 64 << 10
	p := startProxy(t, limit(budget.Bytes, budget.PerUser, share))
	for size, want := range map[int]int{share / 4: http.StatusOK, share: http.StatusTooManyRequests} {
		header := http.Header{"X-Large": {strings.Repeat("x", size)}}
		if got := p.get(t, p.as(t, "mallory"), "/a", header); got.Code != want {
			t.Errorf("want %d for a header of %d bytes, got %d: %s", want, size, got.Code, got.Body)
		}
	}
	eventually(t, func() bool { return p.budget.Held(budget.Bytes) == 0 })
}

// TestStreamsAreNoRequests opens more watches than a user may have requests.
func TestStreamsAreNoRequests(t *testing.T) {
	t.Parallel()
	const fit = 2
	p := startProxy(t, limit(budget.Requests, budget.PerUser, fit))
	release := make(chan struct{})
	defer close(release)
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, req *http.Request) {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-release:
			case <-req.Context().Done():
			}
		}
	})
	c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "jane"))
	paths := []string{"/api/v1/pods?watch=1", "/api/v1/pods?watch=1&resourceVersion=5"}
	for i := range 2 * (fit + 1) {
		c.request(t, uint32(2*i+1), false, false, pseudo("GET", paths[i%2])...)
		if got := c.answer(t, uint32(2*i+1)); got != http.StatusOK {
			t.Fatalf("want watch %d served, got %d", i, got)
		}
	}
	if streams, requests := p.budget.Held(
		budget.Streams,
	), p.budget.Held(
		budget.Requests,
	); streams != 2*(fit+1) ||
		requests != 0 {
		t.Errorf("want %d streams and no request, got %d and %d", 2*(fit+1), streams, requests)
	}
}

// TestMemoryNeeded looks at what counts as bytes before a request is looked at.
func TestMemoryNeeded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		path, header string
		body         int64
		want         int64
	}{
		"nothing large":     {path: "/a", header: "b", body: small, want: 0},
		"a body":            {path: "/a", body: small + 1, want: small + 1},
		"a long body":       {path: "/a", body: relay.MaxHeldBody + 1, want: relay.MaxHeldBody + bodyWindow},
		"an unknown body":   {path: "/a", body: -1, want: relay.MaxHeldBody + bodyWindow},
		"a header":          {path: "/a", header: strings.Repeat("b", small), want: 3 + 4 + 3 + small + fieldOverhead},
		"a path":            {path: "/" + strings.Repeat("a", small-1), header: "b", want: 3 + 2*small + 3 + 1 + fieldOverhead},
		"a header and body": {path: "/a", header: strings.Repeat("b", small), body: 2 * small, want: 10 + 3*small + fieldOverhead},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := &http.Request{Method: "GET", RequestURI: test.path, Header: http.Header{}, ContentLength: test.body}
			if test.header != "" {
				req.Header.Set("X-A", test.header)
			}
			if got := memoryNeeded(req); got != test.want {
				t.Errorf("want %d bytes, got %d", test.want, got)
			}
		})
	}
}

// TestRequestsWithoutAUserAreBounded fills the share of all unauthenticated clients on one connection. The first refusal
// ends the connection, with GOAWAY: what came before is refused, what is under way is answered. A client that repeats the
// rest on a new connection may have one request there, so the test repeats none.
func TestRequestsWithoutAUserAreBounded(t *testing.T) {
	t.Parallel()
	const fit, more = 3, 7
	p := startProxy(t, limit(budget.Requests, budget.Unauthenticated, fit))
	release := make(chan struct{})
	var arrived atomic.Int64
	p.api.set(func() {
		p.api.serve = func(_ http.ResponseWriter, req *http.Request) {
			if strings.Contains(req.RequestURI, "slow") {
				arrived.Add(1)
				select {
				case <-release:
				case <-req.Context().Done():
				}
			}
		}
	})
	c := p.rawHTTP2(t, nil)
	slow := func(int) [][2]string { return pseudo("GET", "/api/v1/pods/slow") }
	if err := c.flood(t, 0, fit, false, slow); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return arrived.Load() == fit })
	if err := c.flood(t, fit, more, false, slow); err != nil {
		t.Fatal(err)
	}
	got, last := map[string]int{}, uint32(0)
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			break
		}
		switch frame := frame.(type) {
		case *http2.GoAwayFrame:
			last = frame.LastStreamID
		case *http2.MetaHeadersFrame:
			status := frame.PseudoValue("status")
			if got[status]++; status == "503" && !hasField(frame, "retry-after") {
				t.Error("want Retry-After with the refusal")
			}
		}
		// All that will be answered has been, but for those that are slow.
		if last > 2*fit && got["503"] == int(last+1)/2-fit {
			if answer := p.get(t, p.as(t, "jane"), "/api/v1/nodes", nil); answer.Code != http.StatusOK {
				t.Errorf("want a newcomer served, got %d: %s", answer.Code, answer.Body)
			}
			close(release)
			last = 0
		}
	}
	if got["200"] != fit || got["503"] < 1 || got["503"] > more || len(got) != 2 {
		t.Errorf("want %d answered, and up to %d refused with 503, got %v", fit, more, got)
	}
	if got := arrived.Load(); got != fit {
		t.Errorf("want %d at the API server, got %d", fit, got)
	}
	eventually(t, func() bool { return p.budget.Held(budget.Requests) == 0 && p.budget.Held(budget.Bytes) == 0 })
}

func hasField(frame *http2.MetaHeadersFrame, name string) bool {
	return slices.ContainsFunc(frame.RegularFields(), func(f hpack.HeaderField) bool { return f.Name == name })
}

// TestConnectionsAreBounded opens more connections than there is room for. Those without a user go first, the oldest
// before all.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	t.Run("without a user", func(t *testing.T) {
		t.Parallel()
		const fit, opened = 5, 30
		p := startProxy(t, limit(budget.Connections, budget.Unauthenticated, fit))
		jane := p.as(t, "jane")
		p.get(t, jane, "/api/v1/nodes", nil)
		for range opened {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.address)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
		}
		eventually(t, func() bool { return p.open.evicted.Load() >= opened-fit })
		if got := p.budget.HeldUnauthenticated(budget.Connections); got > fit {
			t.Errorf("want at most %d, got %d", fit, got)
		}
		for _, client := range []*http.Client{jane, p.as(t, "joe")} {
			if got := p.get(t, client, "/api/v1/nodes", nil); got.Code != http.StatusOK {
				t.Errorf("want users served, old and new, got %d", got.Code)
			}
		}
		if got := p.budget.HeldByUser(budget.Connections, "jane"); got != 1 {
			t.Errorf("want the user's connection left alone, got %d", got)
		}
	})
	t.Run("of a user", func(t *testing.T) {
		t.Parallel()
		const fit = 3
		p := startProxy(t, limit(budget.Connections, budget.PerUser, fit))
		certificate := clientCertificate(t, p.signerCA, "mallory")
		var codes []int
		for range fit + 2 {
			codes = append(codes, p.get(t, p.client(t, certificate), "/api/v1/nodes", nil).Code)
		}
		if want := []int{200, 200, 200, 429, 429}; !slices.Equal(codes, want) {
			t.Errorf("want %d, got %d", want, codes)
		}
		if got := p.get(t, p.as(t, "jane"), "/api/v1/nodes", nil); got.Code != http.StatusOK {
			t.Errorf("want others served, got %d", got.Code)
		}
		eventually(t, func() bool { return p.budget.Held(budget.Connections) == fit+1 })
	})
	t.Run("of all together", func(t *testing.T) {
		t.Parallel()
		const fit = 3
		p := startProxy(t, limit(budget.Connections, budget.Total, fit))
		mallory := clientCertificate(t, p.signerCA, "mallory")
		for range fit {
			if got := p.get(t, p.client(t, mallory), "/api/v1/nodes", nil); got.Code != http.StatusOK {
				t.Fatalf("want 200, got %d", got.Code)
			}
		}
		time.Sleep(idleBeforeEviction + 100*time.Millisecond)
		if got := p.get(t, p.as(t, "jane"), "/api/v1/nodes", nil); got.Code != http.StatusOK {
			t.Errorf("want an idle connection to make room, got %d", got.Code)
		}
		if got := p.budget.Held(budget.Connections); got > fit {
			t.Errorf("want at most %d, got %d", fit, got)
		}
	})
}
