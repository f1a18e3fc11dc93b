package proxy

import (
	"container/list"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

const (
	// evictionPause is the least time between two headers of one share for which others are closed. An attacker whose
	// connections are closed connects again at once, and each handshake costs us about as much as the attacker.
	evictionPause = 50 * time.Millisecond
	// A connection is not closed for others before it has had headerPatience to complete its header, and as long as it has
	// sent no more than unusedTolerated, shortPatience.
	headerPatience = 250 * time.Millisecond
	shortPatience  = 2 * time.Second
	// maxHeaderWait is how long a connection waits for memory at a time.
	maxHeaderWait = readHeaderTimeout
	// maxServed is how many addresses are remembered by a queue.
	maxServed = 4096
	// reservePart: the reserve is the share of all clients divided by it, and comes on top of that.
	reservePart = 4
)

// headers takes memory from the budget for headers that are not complete, and other bytes that came to nothing yet.
//
// When a share is full, a connection whose header has been incomplete for long is closed. An honest client's is complete
// soon. That is done for one header each evictionPause. Until it is its turn, the connection that needs memory is not
// read: what an attacker sends stays with the attacker. The newest connection and the one that has waited for longest
// take turns, the latter by address: the first is quick for an honest client while attackers keep their connections, the
// second certain when they do not.
//
// For the first unusedTolerated bytes of clients without a user there is a reserve beside the shares, so that they wait
// for nothing. Connections that hold nothing else are not closed: that would make no room.
type headers struct {
	all      *clientConnections
	waiting  atomic.Int64
	reserved atomic.Int64 // bytes that were taken from the reserve

	mu     sync.Mutex // of queues
	queues map[headerOwner]*headerQueue

	muHolders sync.Mutex
	holders   list.List // of holder, in the order in which they began to hold memory
}

type holder struct {
	conn  *clientConn
	since time.Time
}

// headerOwner is one user, one address, all clients without a user, or all clients.
type headerOwner struct {
	share budget.Share
	name  string
}

// headerQueue has the connections that wait for memory of one share. It is there until evictionPause after the last
// eviction, and as long as any wait.
type headerQueue struct {
	headers *headers
	owner   headerOwner
	timer   *time.Timer
	waiting []*headerWaiter // the one that has waited for longest first
	turns   int
	served  map[string]int // the last turn of an address
}

type headerWaiter struct {
	conn  *clientConn
	queue *headerQueue
	turn  chan struct{} // closed when it has got its memory
}

// hold takes as much memory from the budget as what came to nothing on the connection needs. It waits as long as there is
// none, and returns an error when the connection has ended.
func (h *headers) hold(c *clientConn, now time.Time) error {
	short := c.user.Load() == nil && c.unused.bytes.Load() <= unusedTolerated
	if short && c.holdUnused(theReserve, now) == nil {
		return nil
	}
	exceeded := c.holdUnused(theShares, now)
	if exceeded == nil {
		return nil
	}
	waiter := h.join(c, exceeded.Share, now)
	if waiter == nil {
		return nil
	}
	timer := time.NewTimer(maxHeaderWait)
	defer timer.Stop()
	select {
	case <-waiter.turn:
		return nil
	case <-c.gone:
	case <-timer.C:
		klog.Background().V(2).Info("Closed a connection whose header waited too long for memory",
			"client", c.RemoteAddr().String())
		c.abort()
	}
	h.leave(waiter)
	return net.ErrClosed
}

// join returns nil when the connection has got its memory at once, and otherwise what it has to wait for.
func (h *headers) join(c *clientConn, share budget.Share, now time.Time) *headerWaiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	owner := ownerOf(c.client(), share)
	queue := h.queues[owner]
	if queue == nil {
		queue = &headerQueue{headers: h, owner: owner, served: map[string]int{}}
		queue.timer = time.AfterFunc(evictionPause, queue.next)
		h.queues[owner] = queue
		if h.makeRoom(c, now) {
			return nil
		}
	}
	waiter := &headerWaiter{conn: c, queue: queue, turn: make(chan struct{})}
	queue.waiting = append(queue.waiting, waiter)
	h.waiting.Add(1)
	return waiter
}

func ownerOf(client budget.Client, share budget.Share) headerOwner {
	switch share {
	case budget.PerAddress:
		return headerOwner{share, client.Address}
	case budget.PerUser:
		return headerOwner{share, client.User}
	default:
		return headerOwner{share, ""}
	}
}

// leave takes a connection that does not wait any more out of its queue.
func (h *headers) leave(waiter *headerWaiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(waiter.queue.waiting, waiter); i >= 0 {
		waiter.queue.remove(i)
	}
}

// next is called each evictionPause. It gives memory to as many as it is there for, after one eviction.
func (q *headerQueue) next() {
	h := q.headers
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(q.waiting) == 0 {
		delete(h.queues, q.owner)
		return
	}
	now := time.Now()
	for evicted := false; len(q.waiting) > 0; {
		i := q.choose()
		waiter := q.waiting[i]
		if waiter.conn.holdUnused(theShares, now) != nil {
			if evicted || !h.makeRoom(waiter.conn, now) {
				break
			}
			evicted = true
			q.endTurn(waiter.conn)
		}
		q.remove(i)
		close(waiter.turn)
	}
	q.timer.Reset(evictionPause)
}

// choose returns the place of who is next: the newest, or in every other turn the one that has waited for longest, of the
// address that had its last such turn before the others had theirs.
func (q *headerQueue) choose() int {
	chosen := 0
	for i, waiter := range q.waiting {
		before := q.waiting[chosen].conn
		if q.turns%2 == 0 && waiter.conn.accepted.After(before.accepted) ||
			q.turns%2 == 1 && q.served[waiter.conn.address] < q.served[before.address] {
			chosen = i
		}
	}
	return chosen
}

// endTurn counts the turn of a connection for which another was closed.
func (q *headerQueue) endTurn(c *clientConn) {
	if q.turns++; len(q.served) >= maxServed {
		clear(q.served)
	}
	q.served[c.address] = q.turns
}

func (q *headerQueue) remove(i int) {
	q.waiting = slices.Delete(q.waiting, i, i+1)
	q.headers.waiting.Add(-1)
}

// makeRoom closes connections until there is memory for another. It returns false when it has to wait for them to be
// given up. When there are none to close, it takes the memory from the reserve: a header that is complete is refused with
// an answer.
func (h *headers) makeRoom(c *clientConn, now time.Time) bool {
	for {
		exceeded := c.holdUnused(theShares, now)
		if exceeded == nil {
			return true
		}
		victim, later := h.longest(c, exceeded.Share, now)
		switch {
		case victim != nil:
			h.all.evicted.Add(1)
			victim.abort()
		case later:
			return false
		default:
			return c.holdUnused(theReserve, now) == nil
		}
	}
}

// longest returns the connection that has held memory for what came to nothing for the longest time, among those that
// count for the same share as c and have had enough time. If there is none, later tells whether there will be one with
// more than a short header. c itself is left alone. A body of which nothing was read for long may be trailers.
func (h *headers) longest(c *clientConn, share budget.Share, now time.Time) (victim *clientConn, later bool) {
	owner := ownerOf(c.client(), share)
	h.muHolders.Lock()
	defer h.muHolders.Unlock()
	for place := h.holders.Front(); place != nil; place = place.Next() {
		one := place.Value.(holder) //nolint:forcetypeassert // nothing else is in the list
		if one.conn == c || ownerOf(one.conn.client(), share) != owner {
			continue
		}
		held, long := now.Sub(one.since), one.conn.unused.bytes.Load() > unusedTolerated
		body := one.conn.unused.bodies.Load() > 0 // the API server may be slow to take it
		if held >= shortPatience || long && !body && held >= headerPatience {
			return one.conn, false
		}
		later = later || long
	}
	return nil, later
}

// source is where memory is taken from.
type source int

const (
	// theShares are those of the budget.
	theShares source = iota
	// theReserve is for short headers of clients without a user, and for longer ones where none can be closed.
	theReserve
)

// holdUnused takes as much memory as the bytes need, or returns which bound is in the way.
func (c *clientConn) holdUnused(from source, now time.Time) *budget.Exceeded {
	u, h := &c.unused, c.all.headers
	u.mu.Lock()
	defer u.mu.Unlock()
	more := u.memory() - u.held.Load()
	if more <= 0 || u.over {
		return nil
	}
	more = max(more, unusedPiece)
	if from == theReserve {
		if !h.reserve(more) {
			return &budget.Exceeded{Resource: budget.Bytes, Share: budget.Total}
		}
		u.reserved += more
		u.held.Add(more)
		return nil
	}
	// What was from the reserve counts for the shares as well from now on: the header is not short any more.
	holding, err := h.all.budget.Acquire(c.client(), budget.Bytes, more+u.reserved)
	if exceeded, ok := errors.AsType[*budget.Exceeded](err); ok {
		return exceeded
	}
	h.reserved.Add(-u.reserved)
	u.reserved = 0
	u.holdings = append(u.holdings, holding)
	u.held.Add(more)
	if u.place == nil {
		h.muHolders.Lock()
		defer h.muHolders.Unlock()
		u.place = h.holders.PushBack(holder{c, now})
	}
	return nil
}

// reserve takes from the reserve, of which one connection always gets as much as it needs.
func (h *headers) reserve(n int64) bool {
	most := h.all.budget.Limits()[budget.Bytes][budget.Total] / reservePart
	if reserved := h.reserved.Add(n); most > 0 && reserved > most && reserved > n {
		h.reserved.Add(-n)
		return false
	}
	return true
}

// forget is called when a connection has given back all memory, of which some was from the reserve.
func (h *headers) forget(place *list.Element, reserved int64) {
	h.reserved.Add(-reserved)
	if place != nil {
		h.muHolders.Lock()
		defer h.muHolders.Unlock()
		h.holders.Remove(place)
	}
}
