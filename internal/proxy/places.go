package proxy

import (
	"container/list"
	"errors"
	"net"
	"os"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

const (
	// maxHeld is how many connections may wait for a place. Nothing is read of them, so each takes some KiB here and what the
	// kernel takes in for it. With a place each 2 ms the last one waits for 8 s, less than most clients do.
	maxHeld = 4096
	// manyHeld: while not more than so many wait, connections that have just come are not closed before they say hello.
	manyHeld = 512
	// heldPause is the time after which such a connection looks whether another one may make room for it now. The one that
	// has waited for longest looks as soon as that may be so.
	heldPause = 250 * time.Millisecond
	// leastPause is how long it waits at least, and crowdedPause while newcomers wait because so many handshakes do.
	leastPause   = time.Millisecond
	crowdedPause = 10 * time.Millisecond
	// crowdedPart: so many handshakes wait that newcomers wait for a place, when they are at least one part of so many of
	// the connections without a user.
	crowdedPart = 4
	// fewHeld: while fewer than so many wait, places change hands half as fast as they may. A newcomer waits some
	// milliseconds more, and a flood of connections that does not wait for anything costs half.
	fewHeld = 16
	// newcomersTime is how long a client has until its connection may be closed for one like it: to say hello, and
	// after the turn of its handshake to complete that, and to say who its user is.
	newcomersTime = time.Second
)

// place is where a connection waits for a place among those that are open.
type place struct {
	found chan struct{} // closed when it has one; nil when it had one at once
	held  *list.Element // clientConnections.mu guards it; nil when it does not wait any more
	first chan struct{} // gets a value when none has waited for longer any more
}

// isCrowded is true while many of the connections without a user wait for their handshakes. Then a newcomer waits, too:
// otherwise the proxy would accept connections faster than it computes handshakes, and close those that wait.
func (all *clientConnections) isCrowded() bool {
	waiting := int64(all.turns.Waiting())
	return waiting > 0 && waiting*crowdedPart >= all.budget.HeldUnauthenticated(budget.Connections)
}

// newFor is for how long the client is one that has just got the answer to its hello. One that says nothing is never new.
func (c *clientConn) newFor() time.Duration {
	return time.Duration(c.greeted.Load() + int64(newcomersTime) - time.Now().UnixNano())
}

// toGreetFor is for how long the client may still be about to say its hello. A client that opens a thousand connections
// at once, one for each watch, has to get round to that. Those that say nothing, and those that are only opened and
// closed, fill half of the places to wait, and are replaced by newcomers from then on.
func (c *clientConn) toGreetFor() time.Duration { return newcomersTime - time.Since(c.accepted) }

// waitForHandshakes returns how many handshakes wait for their turn, and connections for a place because of them.
func (all *clientConnections) waitForHandshakes() int {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.turns.Waiting() + all.held.Len()
}

// findPlace gives the connection a place, and closes another one for it if need be. When the connection should wait for
// one, wait is how long until it may look again. When all others have a better right, found is false and wait 0.
func (all *clientConnections) findPlace(one *clientConn) (found bool, wait time.Duration) {
	for {
		if one.place.found != nil && isClosed(one.place.found) {
			return true, 0 // the one that was closed for it has called it in
		}
		holding, err := all.budget.Acquire(budget.Client{Address: one.address}, budget.Connections, 1)
		if err == nil {
			all.mu.Lock()
			defer all.mu.Unlock()
			if one.place.found != nil && one.place.held == nil { // it has one since a moment ago, or is closed
				holding.Release()
			} else {
				all.seat(one, holding)
			}
			return true, 0
		}
		exceeded, ok := errors.AsType[*budget.Exceeded](err)
		next := all.beforeNext(one)
		if next > 0 && !all.mayOvertake(one) {
			return false, next
		}
		victim, better, wait := all.victim(one.address, ok && exceeded.Share == budget.PerAddress)
		switch wait = max(wait, next); {
		case victim == nil:
			return false, 0
		case !better && wait > 0:
			return false, wait
		case !better:
			all.replacedNow()
		}
		all.evicted.Add(1)
		victim.yielded.Store(true) // otherwise those who wait would get its place, and more would be closed for one
		victim.abort()
	}
}

// seat gives the connection the place that was found. The caller holds all.mu.
func (all *clientConnections) seat(c *clientConn, holding *budget.Holding) {
	c.holding = holding
	all.open[c] = struct{}{}
	all.count(c, 1)
	if c.place.held != nil {
		all.unhold(c)
		close(c.place.found)
	}
}

// hold lets the connection wait for a place. It returns false when too many wait already.
func (all *clientConnections) hold(c *clientConn) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.held.Len() >= maxHeld {
		return false
	}
	c.place.found, c.place.first = make(chan struct{}), make(chan struct{}, 1)
	c.place.held = all.held.PushBack(c)
	if all.held.Len() == 1 {
		c.place.first <- struct{}{}
	}
	return true
}

// unhold is called when a connection does not wait for a place any more. The caller holds all.mu.
func (all *clientConnections) unhold(c *clientConn) {
	if c.place.held == nil {
		return
	}
	wasFirst := all.held.Front() == c.place.held
	all.held.Remove(c.place.held)
	c.place.held = nil
	if next := all.held.Front(); wasFirst && next != nil {
		next.Value.(*clientConn).place.first <- struct{}{} //nolint:forcetypeassert // nothing else is in the list
	}
}

// mayOvertake is false when a newcomer has no better right than any connection without a user, and so waits in turn. Who
// waits already has none.
func (all *clientConnections) mayOvertake(one *clientConn) bool {
	if one.place.found != nil {
		return false
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	most := 0
	for _, many := range all.strangers {
		most = max(most, many)
	}
	return max(all.fewOfAddress(), all.strangers[one.address]) < most
}

// beforeNext is how long one has to wait until a connection that is not new may be closed for it, 0 when that is now.
// Those who wait get such places one at a time, evenly. Otherwise all places would change hands at once, time and again,
// and the processors would be busy with nothing but handshakes for as long as that takes.
func (all *clientConnections) beforeNext(one *clientConn) time.Duration {
	all.mu.Lock()
	defer all.mu.Unlock()
	if first := all.held.Front(); first != nil && first != one.place.held {
		return heldPause
	}
	each := newcomersTime / time.Duration(max(1, all.budget.Limits()[budget.Connections][budget.Unauthenticated]))
	if all.held.Len() < fewHeld {
		each *= 2
	}
	return max(0, time.Until(all.replaced.Add(each)))
}

// replacedNow is called when a connection is closed for one that has no better right.
func (all *clientConnections) replacedNow() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.replaced = time.Now()
}

// isFirst is true when no connection has waited for a place for longer.
func (all *clientConnections) isFirst(c *clientConn) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	return c.place.held != nil && all.held.Front() == c.place.held
}

// callIn is called when there may be room. It gives places to those that have waited for longest.
func (all *clientConnections) callIn() {
	all.mu.Lock()
	defer all.mu.Unlock()
	for first := all.held.Front(); first != nil; first = all.held.Front() {
		c := first.Value.(*clientConn) //nolint:forcetypeassert // nothing else is in the list
		holding, err := all.budget.Acquire(budget.Client{Address: c.address}, budget.Connections, 1)
		if err != nil {
			return
		}
		all.seat(c, holding)
	}
}

// waitForPlace returns when the connection has a place, or with an error when it gets none, or closed is closed.
func (c *clientConn) waitForPlace(closed <-chan struct{}) error {
	timer := time.NewTimer(heldPause)
	defer timer.Stop()
	for end := c.accepted.Add(readHeaderTimeout); ; {
		select {
		case <-c.place.found:
			return nil
		case <-c.gone:
			return net.ErrClosed
		case <-closed:
			return net.ErrClosed
		case <-c.place.first:
		case <-timer.C:
		}
		if !time.Now().Before(end) {
			return os.ErrDeadlineExceeded
		}
		found, wait := c.all.findPlace(c)
		if !found && wait == 0 {
			return net.ErrClosed
		}
		if !c.all.isFirst(c) {
			wait = heldPause
		}
		timer.Reset(min(max(wait, leastPause), heldPause))
	}
}
