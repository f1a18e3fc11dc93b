package proxy

import (
	"context"
	"net"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/fairqueue"
)

// newTurns makes the queue in which TLS handshakes take turns. A turn begins when the client hello has been read, and ends
// when the proxy's answer to it is written: in between are the key exchange and the signature, which cost most. No client
// is waited for during a turn. Without turns, a few hundred handshakes that come at once keep all processors busy, and
// users who are known wait behind all of them.
//
// Addresses take turns, and the handshakes of one address are in the order in which their hellos came.
func newTurns(slots int) *fairqueue.Queue {
	return fairqueue.New(fairqueue.Limits{Slots: slots})
}

// beginTurn returns when the handshake of c has a turn, or with an error when the connection ends before. The turn ends by
// itself with the next read or write below TLS, or with the connection.
func (c *clientConn) beginTurn(ctx context.Context) error {
	if c.turn.Load() != nil {
		return nil
	}
	turn := c.all.turns.Join(fairqueue.Owner{Name: c.address})
	if !turn.Begun() {
		select {
		case <-turn.Slot():
		case <-c.gone:
			turn.Done()
			return net.ErrClosed
		case <-ctx.Done():
			turn.Done()
			return context.Cause(ctx)
		}
	}
	c.turn.Store(turn)
	c.greeted.Store(time.Now().UnixNano())
	if isClosed(c.gone) { // at the same moment, so nothing else would end the turn
		c.endTurn()
		return net.ErrClosed
	}
	return nil
}

// endTurn gives the turn back, if the connection has one.
func (c *clientConn) endTurn() {
	if c.turn.Load() == nil {
		return
	}
	if turn := c.turn.Swap(nil); turn != nil {
		turn.Done()
	}
}
