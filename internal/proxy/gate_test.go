package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// connection returns the one connection of a client.
func (p *proxy) connection(t *testing.T) *clientConn {
	t.Helper()
	var found *clientConn
	eventually(t, func() bool {
		p.open.mu.Lock()
		defer p.open.mu.Unlock()
		for one := range p.open.open {
			found = one
		}
		return len(p.open.open) == 1
	})
	return found
}

func (g *turnstile) counts() (inside, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inside, len(g.waiting)
}

// pauses is true when the connection would not be read now.
func (g *turnstile) pauses() bool {
	resumed, _, _ := g.mustPause()
	return resumed != nil
}

// TestStrangersPassAFewAtATime asks with one token many times on a connection. Only a few of the requests are looked at
// until it is known whether the token is any good. Then all are served, or the others have cost nothing.
func TestStrangersPassAFewAtATime(t *testing.T) {
	t.Parallel()
	const many = 100
	for name, good := range map[string]bool{"a good token": true, "a bad token": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			release := make(chan struct{})
			p.api.set(func() {
				p.api.during = func(ctx context.Context, what string) {
					if what == "asked" {
						select {
						case <-release:
						case <-ctx.Done():
						}
					}
				}
				if good {
					p.api.tokens["asked"] = authenticationv1.UserInfo{Username: "jane"}
				}
			})
			c := p.rawHTTP2(t, nil)
			if err := c.flood(t, 0, many, false, func(int) [][2]string {
				return append(pseudo("GET", "/a"), [2]string{"authorization", "Bearer asked"})
			}); err != nil {
				t.Fatal(err)
			}
			conn := p.connection(t)
			eventually(t, func() bool {
				inside, waiting := conn.gate.counts()
				return inside == maxUndecided && waiting == many-maxUndecided
			})
			if got := p.budget.Held(budget.Requests); got > maxUndecided {
				t.Errorf("want at most %d requests looked at, got %d", maxUndecided, got)
			}
			close(release)
			if good {
				eventually(t, func() bool { return p.api.arrived.Load() == many })
				return
			}
			got := c.answers(t)
			// Each that is refused lets another one pass, until enough were.
			if got[http.StatusUnauthorized] >= maxUndecided+maxMisused || len(got) > 1 {
				t.Errorf("want less than %d answers with 401, got %v", maxUndecided+maxMisused, got)
			}
			if arrived := p.api.arrived.Load(); arrived != 0 {
				t.Errorf("want nothing forwarded, got %d", arrived)
			}
			eventually(t, func() bool {
				inside, waiting := conn.gate.counts()
				return inside == 0 && waiting == 0 && p.budget.Held(budget.Requests) == 0
			})
		})
	}
}

// TestResetStreamsAreNotAuthenticated has requests be reset while they wait for their turn on a connection: as few as
// do not cost the connection. The token is not looked at for them.
func TestResetStreamsAreNotAuthenticated(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	release := make(chan struct{})
	defer close(release)
	p.api.set(func() {
		p.api.during = func(ctx context.Context, _ string) {
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
	})
	c := p.rawHTTP2(t, nil)
	oneToken := func(int) [][2]string { return badToken(0) }
	if err := c.flood(t, 0, maxUndecided, false, oneToken); err != nil {
		t.Fatal(err)
	}
	conn := p.connection(t)
	eventually(t, func() bool { return p.tokens.Counts.Misses.Load() == maxUndecided })
	const few = maxMisused - 1
	if err := c.flood(t, maxUndecided, few, false, oneToken); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { _, waiting := conn.gate.counts(); return waiting == few })
	for i := range few {
		if err := c.WriteRSTStream(uint32(2*(maxUndecided+i)+1), http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { return conn.resets.Load() == few })
	if got := p.tokens.Counts.Misses.Load(); got != maxUndecided {
		t.Errorf("want the token looked at for none of %d, got %d", few, got-maxUndecided)
	}
	if conn.shut.Load() {
		t.Error("want the connection not shut, as then nothing would be looked at either")
	}
}

// TestStreamsLeaveTheGate opens more watches without a user on one connection than may be looked at at a time.
func TestStreamsLeaveTheGate(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	var open atomic.Int64
	p.api.set(func() {
		p.api.serve = func(_ http.ResponseWriter, req *http.Request) {
			open.Add(1)
			<-req.Context().Done()
		}
	})
	const many = maxUndecided + 10
	c := p.rawHTTP2(t, nil)
	if err := c.flood(
		t,
		0,
		many,
		false,
		func(int) [][2]string { return pseudo("GET", "/api/v1/pods?watch=1") },
	); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return open.Load() == many })
}

// TestShutConnectionsDoNotWaitForReaders has a client without a user be refused with a very large header, and read
// nothing. Neither the connection nor the header is kept for it.
func TestShutConnectionsDoNotWaitForReaders(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	c := p.rawHTTP2(t, nil)
	c.readNothing(t)
	conn := p.connection(t)
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
	eventually(t, conn.hurried.Load) // only an answer that is not read is left
	select {
	case <-conn.gone:
	case <-time.After(shutWait / 2):
		t.Error("want the connection closed soon, and not when requests that are under way would have to end")
	}
	eventually(t, func() bool { return p.budget.Held(budget.Connections) == 0 })
}

// TestWaitingEndsAtTheGate has a request wait behind others, and then something comes of it. Nothing is left of it, and
// its memory is given back at once.
func TestWaitingEndsAtTheGate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		then   func(g *turnstile, one *waiter)
		inside int // of the others and this one
	}{
		"it gives up":                        {(*turnstile).forget, maxUndecided},
		"its turn comes":                     {func(g *turnstile, _ *waiter) { g.leave() }, maxUndecided},
		"its turn comes and it gives up":     {func(g *turnstile, one *waiter) { g.leave(); g.forget(one) }, maxUndecided - 1},
		"a user is known":                    {func(g *turnstile, _ *waiter) { g.unlock() }, maxUndecided + 1},
		"a user is known and it gives up":    {func(g *turnstile, one *waiter) { g.unlock(); g.forget(one) }, maxUndecided},
		"its connection is closed":           {func(g *turnstile, _ *waiter) { g.end() }, maxUndecided},
		"its connection is closed: it knows": {func(g *turnstile, one *waiter) { g.end(); g.forget(one) }, maxUndecided},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var g turnstile
			b := budget.New(budget.Defaults(), nil)
			for range maxUndecided {
				g.join()
			}
			one := g.join()
			g.keep(one, b.Force(budget.Client{}, budget.Bytes, waitingBytes))
			if got := b.Held(budget.Bytes); got != waitingBytes {
				t.Fatalf("want memory held as long as it waits, got %d bytes", got)
			}
			test.then(&g, one)
			if inside, _ := g.counts(); inside != test.inside || b.Held(budget.Bytes) != 0 {
				t.Errorf("want %d inside and no memory held, got %d and %d bytes", test.inside, inside, b.Held(budget.Bytes))
			}
			late := b.Force(budget.Client{}, budget.Bytes, waitingBytes) // what it got at the same moment
			g.keep(one, late)
			g.forget(one)
			if got := b.Held(budget.Bytes); got != 0 {
				t.Errorf("want no memory held afterwards, got %d bytes", got)
			}
		})
	}
	t.Run("its client leaves", func(t *testing.T) {
		t.Parallel()
		var g turnstile
		for range maxUndecided {
			g.join()
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		hold := func() (*budget.Holding, bool) { return nil, true }
		if g.enter(ctx, nil, hold) != nil {
			t.Error("want it not to pass")
		}
		if inside, waiting := g.counts(); inside != maxUndecided || waiting != 0 {
			t.Errorf("want none left that waits, got %d, and %d inside", waiting, inside)
		}
	})
}

// TestTheGateOfALostConnection has a request come to the gate of a connection on which nothing more is to be served.
func TestTheGateOfALostConnection(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(c *clientConn)
		left    bool // the client has reset it
		passes  bool
		code    int // 0: the stream is reset
	}{
		"it goes on":                {passes: true, code: http.StatusOK},
		"it was closed":             {prepare: func(c *clientConn) { _ = c.Close() }},
		"it was shut":               {prepare: func(c *clientConn) { c.shut.Store(true) }},
		"it goes on after a reset":  {left: true},
		"it is shut for the resets": {prepare: func(c *clientConn) { c.resets.Store(maxMisused - 1) }, left: true, code: 503},
		"it is shut for one under attack": {
			prepare: func(c *clientConn) { c.all.budget.Misused(c.client(), 1<<20) }, left: true, code: 503,
		},
		"its client knows": {prepare: func(c *clientConn) { c.resets.Store(maxMisused - 1); c.farewell.Store(true) }, left: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := budget.New(budget.Defaults(), nil)
			c := newClientConnections(b, 1).admit(deadEnd{})
			defer c.Close() //nolint:errcheck // it goes nowhere
			c.serving.Add(1)
			if test.prepare != nil {
				test.prepare(c)
			}
			ctx, cancel := context.WithCancel(withConnection(t.Context(), c))
			defer cancel()
			if test.left {
				cancel()
			}
			req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/a", nil)
			req.ProtoMajor = 2
			passed, answer := false, httptest.NewRecorder()
			handler := holdBack(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = true }), b)
			code := func() (code int) {
				defer func() {
					if recover() != nil {
						code = 0
					}
				}()
				handler.ServeHTTP(answer, req)
				return answer.Code
			}()
			if passed != test.passes || code != test.code {
				t.Errorf("want it to pass: %t, with %d, got %t, %d", test.passes, test.code, passed, code)
			}
			if got := answer.Header().Get("Connection") == "close"; got != (code == 503) {
				t.Errorf("want the client told with the last answer, got %t with %d", got, code)
			}
		})
	}
}

// TestGate has many requests pass, leave, and give up at the same time.
func TestGate(t *testing.T) {
	t.Parallel()
	var g turnstile
	var now, most, passed atomic.Int64
	var group sync.WaitGroup
	for i := range 20 * maxUndecided {
		group.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			if i%3 == 0 {
				cancel()
			}
			defer cancel()
			leave := g.enter(ctx, nil, func() (*budget.Holding, bool) { return nil, true })
			if leave == nil {
				return
			}
			passed.Add(1)
			n := now.Add(1)
			for last := most.Load(); n > last && !most.CompareAndSwap(last, n); last = most.Load() {
			}
			now.Add(-1)
			leave()
			leave() // a second time does nothing
		})
	}
	group.Wait()
	if got := most.Load(); got > maxUndecided {
		t.Errorf("want at most %d at a time, got %d", maxUndecided, got)
	}
	if inside, waiting := g.counts(); inside != 0 || waiting != 0 || g.pauses() {
		t.Errorf("want nothing left, got %d inside and %d waiting", inside, waiting)
	}
	for range maxUndecided {
		if g.join() != nil {
			t.Fatal("want room again")
		}
	}
	turn := g.join()
	if turn == nil || !g.pauses() {
		t.Fatal("want the next to wait")
	}
	g.unlock()
	if !isClosed(turn.turn) || g.pauses() || g.join() != nil {
		t.Error("want all to pass when there is a user")
	}
}
