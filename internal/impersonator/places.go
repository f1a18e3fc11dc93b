package impersonator

import (
	"container/list"
	"errors"
	"net"
	"os"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/impersonator/budget"
)

const (
	// maxHeld is how many connections may wait for a place. Nothing is read of them, so each takes some 10 KiB and what
	// the kernel takes in for it.
	maxHeld = 1024
	// heldPause is the time after which such a connection looks whether another one may make room for it now.
	heldPause = 250 * time.Millisecond
	// crowdedPart: so many handshakes wait that newcomers wait for a place, when they are at least one part of so many of
	// the connections without a user.
	crowdedPart = 4
	// newcomersTime is how long a client has until its connection may be closed for one like it: to say hello, and
	// after the turn of its handshake to complete that, and to say who its user is.
	newcomersTime = time.Second
)

// place is where a connection waits for a place among those that are open.
type place struct {
	found chan struct{} // closed when it has one; nil when it had one at once
	held  *list.Element // clientConnections.mu guards it; nil when it does not wait any more
}

// isCrowded is true while many of the connections without a user wait for their handshakes. Then a newcomer waits, too:
// otherwise the proxy would accept connections faster than it computes handshakes, and close those that wait.
func (all *clientConnections) isCrowded() bool {
	waiting := int64(all.turns.Waiting())
	return waiting > 0 && waiting*crowdedPart >= all.budget.HeldUnauthenticated(budget.Connections)
}

// isNew is true when the client has just got the answer to its hello. One that says nothing is never new.
func (c *clientConn) isNew() bool {
	return time.Now().UnixNano() < c.greeted.Load()+int64(newcomersTime)
}

// hasJustCome is true when the client may still be about to say its hello. A client that opens a thousand connections
// at once, one for each watch, has to get round to that. Those that say nothing, and those that are only opened and
// closed, fill half of the places to wait, and are replaced by newcomers from then on.
func (c *clientConn) hasJustCome() bool { return time.Since(c.accepted) < newcomersTime }

// waitForHandshakes returns how many handshakes wait for their turn, and connections for a place because of them.
func (all *clientConnections) waitForHandshakes() int {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.turns.Waiting() + all.held.Len()
}

// findPlace gives the connection a place, and closes another one for it if need be. When the connection should wait for
// one, wait is true. When all others have a better right, neither is.
func (all *clientConnections) findPlace(one *clientConn) (found, wait bool) {
	for {
		if one.place.found != nil && isClosed(one.place.found) {
			return true, false // the one that was closed for it has called it in
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
			return true, false
		}
		exceeded, ok := errors.AsType[*budget.Exceeded](err)
		victim, wait := all.victim(one.address, ok && exceeded.Share == budget.PerAddress)
		if victim == nil || wait {
			return false, wait
		}
		all.evicted.Add(1)
		victim.abort()
	}
}

// seat gives the connection the place that was found. The caller holds all.mu.
func (all *clientConnections) seat(c *clientConn, holding *budget.Holding) {
	c.holding = holding
	all.open[c] = struct{}{}
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
	c.place.found = make(chan struct{})
	c.place.held = all.held.PushBack(c)
	return true
}

// unhold is called when a connection does not wait for a place any more. The caller holds all.mu.
func (all *clientConnections) unhold(c *clientConn) {
	if c.place.held != nil {
		all.held.Remove(c.place.held)
		c.place.held = nil
	}
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

// waitForPlace returns when the connection has a place. Nothing is read before.
func (c *clientConn) waitForPlace() error {
	if c.place.found == nil {
		return nil
	}
	timer := time.NewTimer(heldPause)
	defer timer.Stop()
	for end := c.accepted.Add(readHeaderTimeout); ; timer.Reset(heldPause) {
		select {
		case <-c.place.found:
			return nil
		case <-c.gone:
			return net.ErrClosed
		case <-timer.C:
		}
		if !time.Now().Before(end) {
			return os.ErrDeadlineExceeded
		}
		if c.all.isCrowded() {
			continue
		}
		if found, wait := c.all.findPlace(c); !found && !wait {
			c.abort()
			return net.ErrClosed
		}
	}
}
