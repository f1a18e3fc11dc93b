package proxy

import (
	"container/list"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// maxUndecided is how many requests of an HTTP/2 connection on which no user has authenticated are looked at at a time.
	maxUndecided = 2 * maxMisused
	// readPause is how long a connection with more of them waits before the next read. While the share of refusals is full
	// and they wait for one whose body does not come, it is twice as long for each further one, and longestReadPause at
	// most.
	readPause        = 50 * time.Millisecond
	longestReadPause = 10 * time.Second
	// waitingBytes is about what a request takes in memory that waits, beside its header.
	waitingBytes = 8 << 10
)

// turnstile holds back the requests of a connection on which no user has authenticated. It lets a few pass at a time.
// When they turn out to be no good the connection is shut, and those that wait have cost nothing but their header. As
// soon as a user has authenticated on the connection, all of them pass.
type turnstile struct {
	mu      sync.Mutex
	open    bool          // a user has authenticated
	over    bool          // the connection is closed
	inside  int           // those that passed, until they are answered or turn out to be streams
	waiting []*waiter     // the first is the next to pass
	waits   bool          // some wait, and the connection is open
	bodies  int           // those inside that wait for a piece of their body
	refused bool          // the last answer of the connection is a refusal that is about to be written
	resumed chan struct{} // closed when the connection may be read again; nil when its reader does not wait
	most    func() int    // how many may be inside now; nil for maxUndecided
	crowded func()        // called when requests begin to wait; may be nil
	cleared func()        // called when none waits any more, after crowded; may be nil
}

// crowds are the connections on which requests wait, in the order in which they began to.
type crowds struct {
	evicting sync.Mutex // held while one of them is closed to make room

	mu    sync.Mutex
	conns list.List // of *clientConn
}

// watch tells crowds when requests wait on the connection.
func (w *crowds) watch(c *clientConn) {
	var place *list.Element // changed under w.mu
	c.gate.crowded = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		place = w.conns.PushBack(c)
	}
	c.gate.cleared = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.conns.Remove(place)
	}
}

// waiter is a request that waits.
type waiter struct {
	turn    chan struct{}   // closed when it may pass
	holding *budget.Holding // of what it takes in memory
}

// mayPass is how many requests of a connection without a user are looked at at a time. While the share of refusals is
// full, it is one, and one more for each that was served.
func (c *clientConn) mayPass() int {
	if served := c.served.Load(); served < maxUndecided && c.underAttack() {
		return 1 + int(served)
	}
	return maxUndecided
}

// mayEnter is true when one more may pass. The caller holds g.mu.
func (g *turnstile) mayEnter() bool {
	most := maxUndecided
	if g.most != nil && !g.open {
		most = g.most()
	}
	return g.open || g.inside < most
}

// enter returns when the request may pass, with what is to be called when it is done. It returns nil when the request or
// the connection ends before, or when it would have to wait and hold says that there is no memory for it.
func (g *turnstile) enter(
	ctx context.Context,
	gone <-chan struct{},
	hold func() (*budget.Holding, bool),
) (leave func()) {
	one := g.join()
	if one == nil {
		return sync.OnceFunc(g.leave)
	}
	holding, ok := hold()
	if !ok {
		g.forget(one)
		return nil
	}
	g.keep(one, holding)
	select {
	case <-one.turn:
	case <-ctx.Done():
		g.forget(one)
		return nil
	case <-gone:
		g.forget(one)
		return nil
	}
	return sync.OnceFunc(g.leave)
}

// join returns nil when the request may pass at once.
func (g *turnstile) join() *waiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 && g.mayEnter() {
		g.inside++
		return nil
	}
	one := &waiter{turn: make(chan struct{})}
	g.waiting = append(g.waiting, one)
	if !g.waits && !g.over {
		g.waits = true
		if g.crowded != nil {
			g.crowded()
		}
	}
	return one
}

// keep holds the memory of a request as long as it waits.
func (g *turnstile) keep(one *waiter, holding *budget.Holding) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over || isClosed(one.turn) {
		holding.Release()
		return
	}
	one.holding = holding
}

// end is called when the connection is closed: what waits gives its memory back at once.
func (g *turnstile) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	for _, one := range g.waiting {
		one.holding.Release()
		one.holding = nil
	}
	g.clear()
}

// clear says that nothing waits any more, or that the connection is closed. The caller holds g.mu.
func (g *turnstile) clear() {
	if !g.waits {
		return
	}
	g.waits = false
	if g.cleared != nil {
		g.cleared()
	}
}

func (g *turnstile) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.dispatch()
}

// forget takes a request that does not wait any more out of the queue.
func (g *turnstile) forget(who *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	who.holding.Release()
	for i, one := range g.waiting {
		if one == who {
			g.waiting = append(g.waiting[:i], g.waiting[i+1:]...)
			g.dispatch()
			return
		}
	}
	g.inside-- // its turn came at the same moment
	g.dispatch()
}

// unlock lets all requests pass, also later ones.
func (g *turnstile) unlock() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
	g.dispatch()
}

// dispatch lets those pass for which there is room. The caller holds g.mu.
func (g *turnstile) dispatch() {
	for len(g.waiting) > 0 && g.mayEnter() {
		close(g.waiting[0].turn)
		g.waiting[0].holding.Release()
		g.waiting = g.waiting[1:]
		g.inside++
	}
	if len(g.waiting) == 0 {
		g.clear()
	}
	g.resume()
}

// resume has the connection read again if it may be. The caller holds g.mu.
func (g *turnstile) resume() {
	if g.resumed != nil && !g.isFull() {
		close(g.resumed)
		g.resumed = nil
	}
}

// isFull is true when what is read would become requests that have to wait. While the share of refusals is full, the
// connection is not read to find that out: a request that has come costs as much as half a refusal, even if it is never
// looked at. The caller holds g.mu.
func (g *turnstile) isFull() bool {
	switch {
	case g.open:
		return false
	case g.refused, g.waits:
		return true
	case g.most == nil || g.bodies > 0:
		return false
	}
	most := g.most()
	return most < maxUndecided && g.inside >= most
}

// awaitBody says that a request waits for a piece of its body, which is to be read then, until got is called.
func (g *turnstile) awaitBody() (got func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bodies++
	g.resume()
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.bodies--
	}
}

// refuse says that the only request inside is about to be refused, and that nothing follows on the connection.
func (g *turnstile) refuse() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused = true
}

// mustPause returns what is closed when the connection may be read again, nil when it may be read now, and how long it
// is not read at most. With final, it will not be read any more.
func (g *turnstile) mustPause() (resumed <-chan struct{}, most time.Duration, final bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isFull() {
		return nil, 0, false
	}
	if g.resumed == nil {
		g.resumed = make(chan struct{})
	}
	most = readPause
	if g.bodies > 0 && g.most != nil && g.most() < maxUndecided {
		for range len(g.waiting) - 1 {
			if most = min(2*most, longestReadPause); most == longestReadPause {
				break
			}
		}
	}
	return g.resumed, most, g.refused
}

// isCrowded is true while what is read, if it is a request, would have to wait.
func (g *turnstile) isCrowded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waits || !g.mayEnter()
}

// pause is called before each read of a connection. While requests wait, it is read slowly: what is read becomes further
// requests, and a header may be very large once it is decoded. It is read nevertheless, as the body of a request that
// has passed may be on its way, or window updates for its answer. Before its last answer, a refusal, it is not read any
// more.
func (g *turnstile) pause(gone <-chan struct{}) {
	resumed, most, final := g.mustPause()
	if resumed == nil {
		return
	}
	if !final {
		timer := time.NewTimer(most)
		defer timer.Stop()
		select {
		case <-resumed:
		case <-gone:
		case <-timer.C:
			_, _, final = g.mustPause()
		}
	}
	if final {
		<-gone
	}
}

// holdBack lets the requests of strangers pass a few at a time, and none when the connection is shut. It is the
// outermost filter, so that those that do not pass cost little. HTTP/1 has one request of a connection at a time.
func holdBack(next http.Handler, b *budget.Budget) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		conn := connectionFrom(ctx)
		if conn == nil || req.ProtoMajor < 2 {
			next.ServeHTTP(w, req)
			return
		}
		if !conn.shut.Load() && conn.user.Load() == nil {
			full, waits, arriving := false, false, &conn.all.arrivals.undecided
			arriving.Add(1)
			leave := conn.gate.enter(ctx, conn.gone, func() (*budget.Holding, bool) {
				holding := conn.holdWaiting(b, req)
				waits, full = true, holding == nil
				arriving.Add(-1)
				return holding, !full
			})
			if !waits {
				arriving.Add(-1)
			}
			if full {
				conn.refuse(ctx, b, conn.client(), 1+memoryOfHead(req)/heavyHeader, req.ProtoMajor)
				panic(http.ErrAbortHandler)
			}
			if leave != nil {
				defer leave()
				ctx = context.WithValue(ctx, leaveKey{}, leave)
				req = req.WithContext(ctx)
			}
		}
		switch {
		case isClosed(conn.gone):
			panic(http.ErrAbortHandler)
		case ctx.Err() != nil: // the client has reset it already
			if !conn.shut.Load() {
				conn.reset(ctx, b, conn.client())
			}
			if conn.shut.Load() && !conn.farewell.Swap(true) {
				sayGoaway(w)
				return
			}
			panic(http.ErrAbortHandler)
		case conn.shut.Load():
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, req)
	})
}

// sayGoaway answers a request that is over already. The answer goes nowhere, but net/http says GOAWAY with it, and makes
// no request any more of what the client has sent meanwhile.
func sayGoaway(w http.ResponseWriter) {
	request.CloseAfterwards(w.Header())
	w.WriteHeader(http.StatusServiceUnavailable)
}

// holdWaiting takes the memory of a request that has to wait from the budget. When there is not enough, the connection
// of the same share is closed on which requests have waited for the longest time: those of honest clients pass soon. It
// returns nil when that is c itself, and when another request is just making room: then far too many come at once, and
// they are not to wait for each other as well.
func (c *clientConn) holdWaiting(b *budget.Budget, req *http.Request) *budget.Holding {
	needed := waitingBytes + memoryOfHead(req)
	holding, err := b.Acquire(c.client(), budget.Bytes, needed)
	if err == nil || !c.all.crowds.evicting.TryLock() {
		return holding
	}
	defer c.all.crowds.evicting.Unlock()
	for {
		exceeded, ok := errors.AsType[*budget.Exceeded](err)
		if !ok {
			return holding
		}
		victim := c.all.longestWaiting(c, exceeded.Share)
		if victim == nil || victim == c {
			return nil
		}
		c.all.evicted.Add(1)
		victim.abort()
		holding, err = b.Acquire(c.client(), budget.Bytes, needed)
	}
}

// longestWaiting returns the connection of the same share as c, which may be c, on which requests have waited for the
// longest time. It returns nil when none wait, or when users hold what there is. It is called for each request for which
// there is no room, so it looks at nothing but the first connections.
func (all *clientConnections) longestWaiting(c *clientConn, share budget.Share) *clientConn {
	all.crowds.mu.Lock()
	defer all.crowds.mu.Unlock()
	for place := all.crowds.conns.Front(); place != nil; place = place.Next() {
		other := place.Value.(*clientConn) //nolint:forcetypeassert // nothing else is in the list
		if share != budget.PerAddress || other.address == c.address {
			return other
		}
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

type leaveKey struct{}

// leaveGate makes room for another request of the connection: this one is a stream, and may last for long.
func leaveGate(ctx context.Context) {
	if leave, ok := ctx.Value(leaveKey{}).(func()); ok {
		leave()
	}
}
