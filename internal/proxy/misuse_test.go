package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
)

// flood writes the frames of many requests at once.
func (c *rawHTTP2) flood(t *testing.T, from, n int, reset bool, fields func(i int) [][2]string) error {
	t.Helper()
	var frames bytes.Buffer
	framer := http2.NewFramer(&frames, nil)
	for i := range n {
		stream := uint32(2*(from+i) + 1)
		if err := framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: stream, BlockFragment: c.block(t, fields(i)...), EndHeaders: true, EndStream: true,
		}); err != nil {
			t.Fatal(err)
		}
		if reset {
			if err := framer.WriteRSTStream(stream, http2.ErrCodeCancel); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err := c.conn.Write(frames.Bytes())
	return err
}

// answers reads until the connection ends, and counts the answers by their status.
func (c *rawHTTP2) answers(t *testing.T) map[int]int {
	t.Helper()
	got := map[int]int{}
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			return got
		}
		if head, ok := frame.(*http2.MetaHeadersFrame); ok {
			code := 0
			if _, err := fmt.Sscan(head.PseudoValue("status"), &code); err != nil {
				t.Fatal(err)
			}
			got[code]++
		}
	}
}

func badToken(i int) [][2]string {
	return append(pseudo("GET", "/a"), [2]string{"authorization", fmt.Sprintf("Bearer bad-%d", i)})
}

// TestRefusalsCostTheConnection presents bad credentials on one HTTP/2 connection as fast as it can. A few are refused,
// then the connection is over.
func TestRefusalsCostTheConnection(t *testing.T) {
	t.Parallel()
	const many = 100
	for name, test := range map[string]struct {
		stranger bool // presents a certificate of an unknown CA
		fields   func(i int) [][2]string
	}{
		"tokens":       {fields: badToken},
		"certificates": {stranger: true, fields: func(int) [][2]string { return pseudo("GET", "/a") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			jane := p.as(t, "jane")
			c := p.rawHTTP2(t, nil)
			if test.stranger {
				_ = c.conn.Close()
				c = p.rawHTTP2(t, clientCertificate(t, newCA(t, "unknown"), "mallory"))
			}
			// More than a connection may have at a time, so that it is not over before all are read.
			go func() { _ = c.flood(t, 0, many, false, test.fields) }()
			got := c.answers(t)
			refused := 0
			for code, n := range got {
				if code != http.StatusUnauthorized && code != http.StatusTooManyRequests {
					t.Errorf("want 401 and 429, got %v", got)
				}
				refused += n
			}
			// Those whose review was under way are answered too, and those that are refused at the very same time.
			if refused < 1 || refused > many/2 {
				t.Errorf("want few of %d answered, got %v", many, got)
			}
			// GOAWAY, which comes with the first answer, may have ended it before.
			if refused >= maxMisused && p.open.misused.Load() != 1 {
				t.Errorf("want the connection counted, got %d", p.open.misused.Load())
			}
			eventually(t, func() bool { return p.budget.Held(budget.Requests) == 0 })
			if got := p.get(t, jane, "/b", nil); got.Code != http.StatusOK {
				t.Errorf("want others served, got %d", got.Code)
			}
		})
	}
}

// TestRefusalsUnderAttack has clients without a user be refused so often that their share is full: their next
// connections are over sooner.
func TestRefusalsUnderAttack(t *testing.T) {
	t.Parallel()
	p := startProxy(t, limit(budget.Resets, budget.Unauthenticated, 40))
	for i := range 4 {
		c := p.rawHTTP2(t, nil)
		go func() { _ = c.flood(t, 0, 50, false, func(n int) [][2]string { return badToken(1000*i + n) }) }()
		_ = c.answers(t)
	}
	if p.budget.Refused(budget.Resets, budget.Unauthenticated) == 0 {
		t.Fatal("want the share used up")
	}
	before := p.open.misused.Load()
	c := p.rawHTTP2(t, nil)
	for i := range misusedUnderAttack {
		_ = c.flood(t, i, 1, false, badToken)
		time.Sleep(10 * time.Millisecond)
	}
	_ = c.answers(t)
	eventually(t, func() bool { return p.open.misused.Load() == before+1 || p.budget.Held(budget.Connections) == 0 })
}

// TestUsersAreNotCutOff has a user be told 429 often. The connection ends in good order, with GOAWAY, and what is under
// way is answered.
func TestUsersAreNotCutOff(t *testing.T) {
	t.Parallel()
	const fit, asked = 3, 60
	p := startProxy(t, limit(budget.Requests, budget.PerUser, fit))
	release := make(chan struct{})
	var slow atomic.Int64
	p.api.set(func() {
		p.api.serve = func(_ http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/slow" {
				slow.Add(1)
				<-release
			}
		}
	})
	c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "mallory"))
	c.request(t, 1, false, false, pseudo("GET", "/first")...)
	if got := c.answer(t, 1); got != http.StatusOK {
		t.Fatalf("want 200, got %d", got)
	}
	eventually(t, func() bool { return p.budget.Held(budget.Requests) == 0 })
	if err := c.flood(t, 1, fit, false, func(int) [][2]string { return pseudo("GET", "/slow") }); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return slow.Load() == fit })
	if err := c.flood(t, 1+fit, asked, false, func(int) [][2]string { return pseudo("GET", "/more") }); err != nil {
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
			if last == 0 {
				close(release)
			}
			last = frame.LastStreamID
			if frame.ErrCode != http2.ErrCodeNo {
				t.Errorf("want GOAWAY without an error, got %v", frame.ErrCode)
			}
		case *http2.MetaHeadersFrame:
			got[frame.PseudoValue("status")]++
		}
	}
	// What came after GOAWAY was sent is for the next connection. As soon as the slow requests are released, others may
	// have their places.
	all := (int(last) - 1) / 2
	if got["200"] < fit || got["429"] < maxRefusals || got["200"]+got["429"] != all {
		t.Errorf("want %d answers, at least %d of them 200 and %d of them 429, got %v", all, fit, maxRefusals, got)
	}
	if p.open.misused.Load() != 0 {
		t.Error("want no connection of a user closed before its answers")
	}
}

// TestRefusalsOverHTTP1 asks with a bad credential on one connection again and again. The connection ends with an
// answer, as another program may send requests of many clients over it.
func TestRefusalsOverHTTP1(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	conn := p.raw(t, nil, "")
	answers := readerOf(conn)
	for i := 1; ; i++ {
		if _, err := io.WriteString(conn, "GET /a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatalf("want an answer to the %dth, got %v", i, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusUnauthorized {
			t.Fatalf("want 401, got %d", res.StatusCode)
		}
		if res.Close {
			if i <= maxRefusals {
				t.Errorf("want some patience, got the end with the %dth", i)
			}
			break
		}
		if i > maxRefusals {
			t.Fatalf("want the connection to end with the %dth", i)
		}
	}
	if p.open.misused.Load() != 0 {
		t.Error("want no connection closed before its answer")
	}
}

// TestLargeHeadersOverHTTP1 has a client without a user be refused with a very large header. It gets its answer.
func TestLargeHeadersOverHTTP1(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	large := strings.Repeat("A: b\n", 3000)
	conn := p.raw(t, nil, "GET /a HTTP/1.1\nHost: x\nAuthorization: Bearer bad\n"+large+"\n")
	res, err := http.ReadResponse(readerOf(conn), nil)
	if err != nil {
		t.Fatalf("want an answer, got %v", err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized || p.open.misused.Load() != 0 {
		t.Errorf("want 401, and no connection closed before it, got %d", res.StatusCode)
	}
}

// TestLastRefusals looks at whether a refusal is the last answer on its connection, and says so.
func TestLastRefusals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		attack                  bool
		user                    string
		resets, refused, served int64
		last                    bool
	}{
		"the first":                           {},
		"the first under attack":              {attack: true, last: true},
		"a user's under attack":               {attack: true, user: "jane"},
		"after many resets":                   {resets: maxMisused - 1, last: true},
		"after fewer":                         {resets: maxMisused - 2},
		"a user's after many resets":          {resets: maxMisused - 1, user: "jane"},
		"where as many were served":           {resets: maxMisused - 1, served: maxMisused},
		"where fewer were served":             {resets: maxMisused - 1, served: maxMisused - 1, last: true},
		"where one was served under attack":   {attack: true, served: 1},
		"after refusals":                      {refused: maxRefusals, last: true},
		"a user's after refusals":             {refused: maxRefusals, user: "jane", last: true},
		"a user's, where as many were served": {refused: maxRefusals, served: maxRefusals, user: "jane"},
		"after refusals, with as many served": {refused: maxRefusals, served: maxRefusals},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := budget.New(budget.Defaults(), time.Now)
				conn := newClientConnections(b, 1).admit(deadEnd{})
				defer conn.Close() //nolint:errcheck // it goes nowhere
				if test.attack {
					b.Misused(conn.client(), 1<<20)
				}
				if test.user != "" {
					if err := conn.identify(test.user); err != nil {
						t.Fatal(err)
					}
				}
				conn.resets.Store(test.resets)
				conn.refused.Store(test.refused)
				conn.served.Store(test.served)
				refused := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					stateFrom(req.Context()).Client = conn.client()
					w.WriteHeader(http.StatusUnauthorized)
				})
				answer := httptest.NewRecorder()
				setUp(NewMetrics().measure(limitMisuse(refused, b))).ServeHTTP(answer,
					httptest.NewRequestWithContext(withConnection(t.Context(), conn), "GET", "/a", nil))
				if got := answer.Header().Get("Connection") == "close"; got != test.last {
					t.Errorf("want it to say that it is the last: %t, got %t", test.last, got)
				}
			})
		})
	}
}

// TestResetStreamsCostLittle opens streams and resets them in one write. Most are not even authenticated.
func TestResetStreamsCostLittle(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const rounds, batch = 20, 200
	for i := range rounds {
		c := p.rawHTTP2(t, nil)
		_ = c.flood(t, 0, batch, true, func(n int) [][2]string { return badToken(batch*i + n) })
		_ = c.answers(t)
	}
	eventually(t, func() bool { return p.budget.Held(budget.Requests) == 0 })
	if got := p.tokens.Counts.Misses.Load(); got > rounds*batch/4 {
		t.Errorf("want most of %d streams dropped before their token is looked at, got %d looked at", rounds*batch, got)
	}
}

// TestWhatIsServed looks at what makes up for requests that were refused or reset: answers, not requests without any.
func TestWhatIsServed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		served  int64
	}{
		"an answer": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, 1,
		},
		"a handler that says OK": {func(http.ResponseWriter, *http.Request) {}, 1},
		"an answer that broke off": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic(http.ErrAbortHandler) }, 1,
		},
		"broken off before it began": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := budget.New(budget.Defaults(), nil)
			conn := &clientConn{all: newClientConnections(b, 1)}
			user := "jane"
			conn.user.Store(&user)
			req := httptest.NewRequestWithContext(
				context.WithValue(t.Context(), connectionKey{}, conn), http.MethodGet, "/a", nil)
			func() {
				defer func() { _ = recover() }()
				setUp(NewMetrics().measure(limitMisuse(test.handler, b))).ServeHTTP(httptest.NewRecorder(), req)
			}()
			if got := conn.served.Load(); got != test.served {
				t.Errorf("want %d counted as served, got %d", test.served, got)
			}
		})
	}
}

// TestRefusedImpersonationsCount has a user's nested impersonation be refused because the user causes too many reviews.
func TestRefusedImpersonationsCount(t *testing.T) {
	t.Parallel()
	p := startProxy(t, limit(budget.Reviews, budget.PerUser, 1))
	blocked := p.block(is("greedy"))
	c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "greedy"))
	c.request(t, 1, false, false, pseudo("GET", "/a")...)
	eventually(t, func() bool { return blocked.now.Load() == 1 })
	conn := p.connection(t)
	c.request(t, 3, false, false, append(pseudo("GET", "/b"), [2]string{"impersonate-user", "jane"})...)
	if got := c.answer(t, 3); got != http.StatusTooManyRequests {
		t.Errorf("want 429, got %d", got)
	}
	eventually(t, func() bool { return conn.refused.Load()+conn.served.Load() == 1 })
	if got := conn.served.Load(); got != 0 {
		t.Errorf("want it refused, got %d served", got)
	}
	close(blocked.release)
}

// TestLargeHeadersCostTheConnection has a client without a user be refused with a very large header.
func TestLargeHeadersCostTheConnection(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	c := p.rawHTTP2(t, nil)
	fields := func(int) [][2]string {
		fields := badToken(0)
		for range 3000 {
			fields = append(fields, [2]string{"a", "b"})
		}
		return fields
	}
	if err := c.flood(t, 0, 1, false, fields); err != nil {
		t.Fatal(err)
	}
	if got := c.answers(t); got[http.StatusUnauthorized] != 1 || len(got) != 1 {
		t.Errorf("want one answer and the end, got %v", got)
	}
	if p.open.misused.Load() != 1 {
		t.Error("want the connection closed for its one request")
	}
}

// TestHeadersThatDoNotEnd sends the header of an HTTP/2 request in pieces without an end.
func TestHeadersThatDoNotEnd(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	p.tune = func(s *Server) {
		s.http.HTTP2.SendPingTimeout, s.http.HTTP2.PingTimeout = 300*time.Millisecond, 200*time.Millisecond
	}
	p.start(t)
	c := p.rawHTTP2(t, nil)
	begun := http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block(t, pseudo("GET", "/a")...), EndStream: true}
	if err := c.WriteHeaders(begun); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := c.ReadFrame(); err != nil {
				return
			}
		}
	}()
	for piece := c.block(t, [2]string{"x", strings.Repeat("y", 100)}); ; {
		select {
		case <-ended:
			return
		case <-time.After(20 * time.Millisecond):
			_ = c.WriteContinuation(1, false, piece[:0])
		}
		if time.Since(began) > 15*time.Second {
			t.Fatal("want the connection closed")
		}
	}
}

// TestLoginsDoNotNeedTheBytesOfOthers has clients without a user use up their share of bytes. A login goes on.
func TestLoginsDoNotNeedTheBytesOfOthers(t *testing.T) {
	t.Parallel()
	p := startProxy(t, limit(budget.Bytes, budget.Unauthenticated, relay.MaxHeldBody+bodyWindow))
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
	})
	_ = p.raw(t, nil, "POST /a HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n")
	eventually(t, func() bool { return p.budget.Held(budget.Bytes) == relay.MaxHeldBody+bodyWindow })
	conn := p.raw(t, nil, "POST /a HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n")
	res, err := http.ReadResponse(readerOf(conn), nil)
	if err != nil || res.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("want the share used up, got %v, %v", res, err)
	}
	_ = res.Body.Close()
	if got := p.do(t, p.client(t, nil), "POST", loginPath, nil, "right"); got.Code != http.StatusCreated {
		t.Errorf("want a login, got %d: %s", got.Code, got.Body)
	}
}
