package edge

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
)

// beginTurn waits for the turn of a stranger to have computed what it sent, but for bodies.
func (c *Conn) beginTurn() error {
	if !c.isStranger() || c.bodies.Load() > 0 {
		return nil
	}
	turn, err := c.await(c.ctx)
	if err != nil {
		return err
	}
	c.turn.Store(turn)
	if c.ctx.Err() != nil { // at the same moment, so nothing else would end the turn
		c.endTurn()
		return net.ErrClosed
	}
	return nil
}

func (c *Conn) endTurn() {
	if c.turn.Load() != nil {
		c.turn.Swap(nil).end()
	}
}

// look is a turn in which something is computed for a stranger. It ends by itself after lookLasts, because what takes
// longer waits for something.
type look struct {
	place  *admission.Place
	waited func()
	timer  *time.Timer
	over   atomic.Bool
}

// await waits for a turn. ctx ends with the connection, or with the request.
func (c *Conn) await(ctx context.Context) (*look, error) {
	who, what := admission.Owner{Address: c.address}, admission.Cost{Kind: admission.Look, Member: c}
	place, err := c.edge.admission.Join(who, what)
	if err != nil {
		return nil, err
	}
	l := &look{place: place, waited: c.waits()}
	err = place.Wait(ctx)
	if err == nil {
		err = context.Cause(ctx) // the client may have left meanwhile
	}
	if err != nil {
		l.leave()
		return nil, err
	}
	l.timer = time.AfterFunc(lookLasts, l.leave)
	return l, nil
}

func (l *look) leave() {
	if !l.over.Swap(true) {
		l.place.Leave()
		l.waited()
	}
}

// end does nothing for no look.
func (l *look) end() {
	if l != nil {
		l.timer.Stop()
		l.leave()
	}
}
