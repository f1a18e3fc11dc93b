package impersonator

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// fewHandshakes is how many handshakes of one address may wait without being told from those of others.
	fewHandshakes = 4
	// patientTurns: one turn of so many is for the handshake that has waited for the longest time.
	patientTurns = 4
)

var (
	// The texts are what net/http logs, and are known to handshakeCauses.
	errNoTurn         = errors.New("there was no time for the TLS handshake")
	errLeftForTheTurn = errors.New("the client left before its turn for the TLS handshake: EOF")
)

// handshakes lets TLS handshakes take turns. A turn begins when the client hello has been read, and ends when the proxy's
// flight is written: in between are the key exchange and the signature, which cost most, and the client is not waited
// for. Without turns, a few hundred handshakes that come at once keep all processors busy, and users who are known wait
// behind all of them.
//
// The newest is next: while it is that, its client still waits, and honest clients are few among those who come. Every
// other turn is for the newest of an address with few handshakes that wait, if there is one, so that many from one address
// do not delay the others. Every fourth is for the one that has waited for longest, so that none waits for ever.
type handshakes struct {
	slots int
	begun atomic.Int64

	mu        sync.Mutex
	computing int
	turns     int
	waiting   list.List // of *handshakeWaiting; the one that has waited for the longest time first
	addresses map[string]*waitingOfAddress
}

type waitingOfAddress struct{ handshakes int }

// handshakeWaiting is one that waits for its turn.
type handshakeWaiting struct {
	conn  *clientConn
	place *list.Element // nil when it does not wait any more
	of    *waitingOfAddress
	turn  chan struct{} // closed when it has its turn
}

func newHandshakes(slots int) *handshakes {
	return &handshakes{slots: slots, addresses: map[string]*waitingOfAddress{}}
}

// begin returns when the handshake of c has a turn. It ends by itself with the first write to the connection, or with the
// connection. The error says that the handshake is over.
func (h *handshakes) begin(ctx context.Context, c *clientConn) error {
	if c.computing.Load() {
		return nil
	}
	one := h.join(c)
	if one == nil {
		h.begun.Add(1)
		c.all.moveTo(c, stageAnswered)
		return nil
	}
	c.all.moveTo(c, stageWaiting)
	timer := time.NewTimer(time.Until(c.accepted.Add(readHeaderTimeout)))
	defer timer.Stop()
	select {
	case <-one.turn:
		if hasLeft(c.Conn) {
			c.endTurn()
			return errLeftForTheTurn
		}
		h.begun.Add(1)
		c.all.moveTo(c, stageAnswered)
		return nil
	case <-c.gone:
	case <-ctx.Done():
	case <-timer.C:
	}
	h.leave(one)
	return errNoTurn
}

// join returns nil when the handshake has its turn at once.
func (h *handshakes) join(c *clientConn) *handshakeWaiting {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.computing < h.slots {
		h.computing++
		c.computing.Store(true)
		return nil
	}
	of := h.addresses[c.address]
	if of == nil {
		of = &waitingOfAddress{}
		h.addresses[c.address] = of
	}
	of.handshakes++
	one := &handshakeWaiting{conn: c, of: of, turn: make(chan struct{})}
	one.place = h.waiting.PushBack(one)
	return one
}

// leave takes a handshake out that does not wait any more.
func (h *handshakes) leave(one *handshakeWaiting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one.place != nil {
		h.remove(one)
		return
	}
	if one.conn.computing.Swap(false) { // its turn came at the same moment
		h.next()
	}
}

func (h *handshakes) remove(one *handshakeWaiting) {
	h.waiting.Remove(one.place)
	one.place = nil
	if one.of.handshakes--; one.of.handshakes == 0 {
		delete(h.addresses, one.conn.address)
	}
}

// endTurn gives back the turn of a handshake, if the connection has one.
func (c *clientConn) endTurn() {
	if !c.computing.Load() || !c.computing.Swap(false) {
		return
	}
	h := c.all.handshakes
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next()
}

// next hands on a turn that was given back. The caller holds h.mu.
func (h *handshakes) next() {
	one := h.choose()
	if one == nil {
		h.computing--
		return
	}
	h.turns++
	h.remove(one)
	one.conn.computing.Store(true)
	close(one.turn)
}

// choose returns the handshake that is next, nil when none waits. The caller holds h.mu.
func (h *handshakes) choose() *handshakeWaiting {
	newest, oldest := h.waiting.Back(), h.waiting.Front()
	switch {
	case newest == nil:
		return nil
	case h.turns%patientTurns == patientTurns-1:
		return handshakeAt(oldest)
	case h.turns%2 == 0:
		for place := newest; place != nil; place = place.Prev() {
			if one := handshakeAt(place); one.of.handshakes <= fewHandshakes {
				return one
			}
		}
	}
	return handshakeAt(newest)
}

func handshakeAt(place *list.Element) *handshakeWaiting {
	return place.Value.(*handshakeWaiting) //nolint:forcetypeassert // nothing else is in the list
}

// waits returns how many wait for their turn.
func (h *handshakes) waits() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting.Len()
}
