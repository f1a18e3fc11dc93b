package relay

import (
	"sync"
	"time"
)

const (
	// maxIdle is how many connections wait for the next request. idleFor is for how long, which is less than the 90 s
	// after which the API server closes them.
	maxIdle = 32
	idleFor = 30 * time.Second
)

// pool keeps idle connections. The one that was used last is used next, so that no more are kept than are needed. The
// zero value is ready.
type pool struct {
	mu    sync.Mutex
	idle  []*conn     // in the order in which they became idle
	timer *time.Timer // nil while there is none
}

// take returns a connection that can be used, or nil.
func (p *pool) take() *conn {
	for {
		p.mu.Lock()
		last := len(p.idle) - 1
		if last < 0 {
			p.mu.Unlock()
			return nil
		}
		c := p.idle[last]
		p.idle[last] = nil
		p.idle = p.idle[:last]
		p.mu.Unlock()
		if time.Since(c.since) < idleFor && c.quiet() {
			return c
		}
		c.close()
	}
}

func (p *pool) put(c *conn) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) >= maxIdle || now.Sub(c.made) > maxAge {
		c.close()
		return
	}
	c.since = now
	p.idle = append(p.idle, c)
	if p.timer == nil {
		p.timer = time.AfterFunc(idleFor, p.expire)
	}
}

// expire closes what has been idle for too long, and comes again as long as anything is idle.
func (p *pool) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := time.Now().Add(-idleFor)
	n := 0
	for n < len(p.idle) && !p.idle[n].since.After(due) {
		p.idle[n].close()
		n++
	}
	p.idle = append(p.idle[:0:0], p.idle[n:]...)
	p.timer = nil
	if len(p.idle) > 0 {
		p.timer = time.AfterFunc(p.idle[0].since.Sub(due), p.expire)
	}
}

// drain closes everything that is idle.
func (p *pool) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.idle {
		c.close()
	}
	p.idle = nil
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}
