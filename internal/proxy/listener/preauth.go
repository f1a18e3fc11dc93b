package listener

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

// beginPreAuth acquires a pre-authentication seat to process input of an unauthenticated client, except bodies.
func (c *Conn) beginPreAuth() error {
	if !c.unauthenticated() || c.bodies.Load() > 0 {
		return nil
	}
	preAuth, err := c.await(c.ctx)
	if err != nil {
		return err
	}
	c.preAuth.Store(preAuth)
	if c.ctx.Err() != nil { // the connection ended at the same moment, so nothing else would release the seat
		c.endPreAuth()
		return net.ErrClosed
	}
	return nil
}

func (c *Conn) endPreAuth() {
	if c.preAuth.Load() != nil {
		c.preAuth.Swap(nil).end()
	}
}

// preAuth is a seat for work for an unauthenticated client. It is released after preAuthTimeout, because work that
// takes longer waits for something.
type preAuth struct {
	permit *flowcontrol.Permit
	waited func()
	timer  *time.Timer
	over   atomic.Bool
}

// await waits for a seat. ctx ends with the connection or the request.
func (c *Conn) await(ctx context.Context) (*preAuth, error) {
	who, what := flowcontrol.Flow{Address: c.address}, flowcontrol.Cost{Resource: flowcontrol.PreAuth, SubFlow: c}
	permit, err := c.port.flow.Enqueue(who, what)
	if err != nil {
		return nil, err
	}
	l := &preAuth{permit: permit, waited: c.waits()}
	err = permit.Wait(ctx)
	if err == nil {
		err = context.Cause(ctx) // the client may have disconnected meanwhile
	}
	if err != nil {
		l.release()
		return nil, err
	}
	l.timer = time.AfterFunc(preAuthTimeout, l.release)
	return l, nil
}

func (l *preAuth) release() {
	if !l.over.Swap(true) {
		l.permit.Release()
		l.waited()
	}
}

// end releases the seat. A nil preAuth is valid.
func (l *preAuth) end() {
	if l != nil {
		l.timer.Stop()
		l.release()
	}
}
