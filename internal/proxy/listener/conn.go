package listener

import (
	"container/list"
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

const (
	// sendQueue is how many bytes may wait in the kernel for one client, in addition to those in flight. The kernel
	// would hold megabytes, counts them as the agent's memory (cgroup v2), and no bound of ours would know.
	sendQueue = 64 << 10
	// SmallHead is the size from which on the head of a request is counted. Most are shorter.
	SmallHead = 8 << 10
	// inputFree is how much unprocessed input a client may have sent before it counts as memory.
	inputFree = 4 << 10
	// inputGrowth is about how many bytes of memory each byte of a head takes that is not complete: in HTTP/2 one byte may
	// stand for a whole field (RFC 7541). net/http keeps no more than maxInput of the fields.
	inputGrowth = 40
	// bodyGrowth and unauthenticatedBodyGrowth are the same while bodies are being received, which may have trailers.
	bodyGrowth                = 4
	unauthenticatedBodyGrowth = 16
	// inputPatience is how much of a head is read without a penalty; it fits a large token. More has a penalty.
	inputPatience = 192 << 10
	// inputForgiven is how much of it expires in a second, for connections with pings only.
	inputForgiven = 256
	// maxHandshake is how much a client may send in a handshake: eight large certificates with RSA keys. All are parsed
	// before any can be refused.
	maxHandshake = 32 << 10
	// unauthenticatedRead is how many bytes of an unauthenticated client are read at a time: some ten requests. Handshakes
	// and bodies have no such bound.
	unauthenticatedRead = 1 << 10
	// maxInput ends the connection. It is more than net/http accepts of a head.
	maxInput = 3 << 19
)

// The penalties for wasted work, in processor time as measured (docs/performance.md).
const (
	inputCost = 240 * time.Nanosecond // each byte
	headCost  = 3 * time.Nanosecond   // each byte of a large head, decoded
	// RefusalCost is the penalty for a user's refused request. ResetCost is that for a user's request that was reset
	// before its response began, and for any request of an unauthenticated client.
	RefusalCost = 200 * time.Microsecond
	ResetCost   = time.Millisecond
	// FailedLoginCost is the penalty for a login with a wrong password; most of it is the authenticator's time.
	FailedLoginCost = 50 * time.Millisecond
)

var errTooMuchInput = errors.New("the client sent too much unprocessed input")

// Conn is the connection of one client, below TLS.
type Conn struct {
	net.Conn
	port     *Port
	address  string
	accepted time.Time
	ctx      context.Context //nolint:containedctx // ends with the connection; Read is not given one
	end      context.CancelFunc
	closing  sync.Once

	preAuth  atomic.Pointer[preAuth] // of the computation for what was read
	shook    atomic.Bool             // the handshake is over
	asked    atomic.Bool             // a request has come
	input    atomic.Int64            // unprocessed bytes
	forgiven time.Time               // when some of the input expired last; used by the reading goroutine only
	shaking  *flowcontrol.Permit     // the permit of its handshake; used by the reading goroutine only
	// unfinished is since when memory is held for its input, in Unix nanoseconds; 0 when none is.
	unfinished atomic.Int64
	requests   atomic.Int64 // bytes held for requests
	bodies     atomic.Int64 // requests whose body is being received
	raw        atomic.Bool  // it has switched to another protocol
	serving    atomic.Int64 // requests
	// awaited counts the computations that the client waits for, and progress is when the last of them ended.
	awaited  atomic.Int64
	progress atomic.Int64              // in Unix nanoseconds
	penalty  flowcontrol.Penalty       // as long as there is no user
	user     atomic.Pointer[string]    // nil as long as there is none
	known    chan struct{}             // closed when there is one
	shaken   atomic.Pointer[handshake] // the pending handshake, if known
	claim    atomic.Pointer[string]    // the user if that succeeds

	mu      sync.Mutex
	over    bool
	base    *flowcontrol.Permit
	waiting *flowcontrol.Permit           // of the input, nil for none
	held    map[*flowcontrol.Permit]int64 // with the bytes of each

	element *list.Element // among the unauthenticated clients of its address, under Port.mu
}

type handshake struct{ over <-chan struct{} }

// Flow returns the flow of the connection, and of its requests until they are authenticated.
func (c *Conn) Flow() flowcontrol.Flow {
	flow := flowcontrol.Flow{Address: c.address}
	if user := c.user.Load(); user != nil {
		flow.User = *user
	}
	return flow
}

func (c *Conn) unauthenticated() bool { return c.user.Load() == nil }

// atATime returns as much of p as may be read before the input is counted.
func (c *Conn) atATime(p []byte) []byte {
	if c.shook.Load() && c.unauthenticated() && c.bodies.Load() == 0 {
		return p[:min(len(p), unauthenticatedRead)]
	}
	return p
}

// Read implements net.Conn. It returns input when three conditions are met: the client's penalty has passed, there is
// memory for the input, and an unauthenticated client has a pre-authentication seat.
func (c *Conn) Read(p []byte) (int, error) {
	c.endPreAuth() // no seat is held while waiting for a client
	c.prove()
	n, err := c.Conn.Read(c.atATime(p))
	if n > 0 {
		c.awaitPenalty()
		if err := c.received(n); err != nil {
			return 0, err
		}
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.endPreAuth() // p is the result of the computation
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.closing.Do(func() {
		c.end()
		c.port.forget(c)
		c.endPreAuth()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.over = true
		c.base.Release()
		c.waiting.Release()
		for permit := range c.held {
			permit.Release()
		}
		c.held = nil
	})
	return c.Conn.Close()
}

// Abort resets the connection and drops unsent data, so that the kernel holds nothing of it.
func (c *Conn) Abort() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// Shaking says that the client has sent its ClientHello, and that over is closed when the handshake has ended. The
// input until then is certificates.
func (c *Conn) Shaking(over <-chan struct{}) { c.shaken.Store(&handshake{over}) }

// Claim sets the user of the connection if the handshake succeeds: one whose certificate was verified before.
func (c *Conn) Claim(user string) { c.claim.Store(&user) }

// isShaking is true while the handshake is known to be pending.
func (c *Conn) isShaking() bool {
	shaken := c.shaken.Load()
	return shaken != nil && !isClosed(shaken.over)
}

func (c *Conn) prove() {
	if shaken := c.shaken.Load(); shaken == nil || !isClosed(shaken.over) {
		return
	}
	c.shaken.Store(nil)
	c.shook.Store(true)
	c.Release(c.shaking)
	c.Used(c.input.Load())
	if user := c.claim.Load(); user != nil {
		_ = c.Identified(*user) // without memory, it stays unauthenticated until its request is refused
	}
}

// Identified moves the connection to the flow of its first authenticated user. Behind an authenticating proxy others
// may follow; for these it does nothing. The error is an *flowcontrol.Full.
func (c *Conn) Identified(user string) error {
	if c.user.Load() != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.user.Load() != nil || c.over {
		return nil
	}
	to := flowcontrol.Flow{Address: c.address, User: user}
	if err := c.base.Transfer(to); err != nil {
		return err
	}
	if c.waiting.Transfer(to) != nil { // it is acquired again with the next byte
		c.waiting.Release()
		c.waiting = nil
		c.unfinished.Store(0)
	}
	c.port.known(c)
	c.user.Store(&user)
	close(c.known)
	return nil
}

// Upgraded says that the connection has switched to another protocol. Its input is not counted.
func (c *Conn) Upgraded() {
	c.raw.Store(true)
	c.Used(c.input.Load())
}

// Body says that the body of a request is being received, until done is called.
func (c *Conn) Body() (done func()) {
	c.bodies.Add(1)
	return func() { c.bodies.Add(-1) }
}

// Penalize charges a penalty for wasted work, in processor time.
func (c *Conn) Penalize(cost time.Duration) {
	if user := c.user.Load(); user != nil {
		c.port.flow.Penalize(*user, cost)
		return
	}
	c.port.flow.PenalizeUnauthenticated(&c.penalty, cost, c.port.Unauthenticated())
}

// awaitPenalty returns when the client's penalty has passed. The penalty of an unauthenticated client ends when the
// client authenticates. The connection ends if the client disconnects meanwhile.
func (c *Conn) awaitPenalty() {
	if c.unauthenticated() {
		runtime.Gosched() // ready goroutines run first, so that requests already received are counted
	}
	for c.ctx.Err() == nil {
		due, known := c.penalty.Delay(time.Now()), c.known
		if user := c.user.Load(); user != nil {
			due, known = c.port.flow.Delay(*user), nil
		}
		if due <= 0 {
			return
		}
		timer := time.NewTimer(due)
		select {
		case <-c.ctx.Done():
		case <-known:
		case <-timer.C:
		}
		timer.Stop()
		if hasLeft(c.Conn) {
			c.Abort()
		}
	}
}

// waits says that the client waits for the proxy, until done is called.
func (c *Conn) waits() (done func()) {
	c.awaited.Add(1)
	return func() {
		c.progress.Store(time.Now().UnixNano())
		c.awaited.Add(-1)
	}
}

// received counts input. It returns when there is memory for it, and an unauthenticated client has a pre-authentication
// seat.
func (c *Conn) received(n int) error {
	if c.raw.Load() {
		return nil
	}
	if err := c.grow(); err != nil {
		c.Abort()
		return err
	}
	if err := c.count(int64(n)); err != nil {
		c.Abort()
		return err
	}
	return c.beginPreAuth()
}

// count acquires memory for the client's input, if it is large.
func (c *Conn) count(n int64) error {
	if now := time.Now(); now.Sub(c.forgiven) >= time.Second {
		c.Used(int64(now.Sub(c.forgiven).Seconds() * inputForgiven))
		c.forgiven = now
	}
	input := c.input.Add(n)
	switch {
	case input <= inputFree, c.isShaking() && input <= maxHandshake:
		return nil
	case input > maxInput, c.isShaking():
		return errTooMuchInput
	case input > inputPatience && c.bodies.Load() == 0:
		c.Penalize(timeOf(n, inputCost))
	}
	return c.holdInput(input)
}

// grow waits for a handshake seat, and acquires the memory of the connection from there on. It leaves a quarter of the
// memory of unauthenticated clients for their requests (Request.enter).
func (c *Conn) grow() error {
	if c.shaking != nil || c.asked.Load() {
		return nil
	}
	defer c.waits()()
	var err error
	if c.shaking, err = c.hold(c.Flow(), flowcontrol.Cost{Resource: flowcontrol.Handshake}); err != nil {
		return err
	}
	if err := c.shaking.Wait(c.ctx); err != nil {
		return err
	}
	time.AfterFunc(patience, func() { c.Release(c.shaking) })
	return c.port.withEviction(c, evictionTimeout, func() error { return c.base.Grow(flowcontrol.HandshakeBytes, 2) })
}

// holdInput acquires the memory that the input may need. When there is none, it waits.
func (c *Conn) holdInput(input int64) error {
	needed := min(input*inputGrowth, input+maxInput)
	if c.bodies.Load() > 0 {
		growth := int64(bodyGrowth)
		if c.unauthenticated() {
			growth = unauthenticatedBodyGrowth
		}
		needed = min(input*growth, input+maxInput)
	}
	defer c.waits()()
	return c.port.withEviction(c, evictionTimeout, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case c.over:
			return net.ErrClosed
		case c.input.Load() <= inputFree: // it was processed meanwhile
			return nil
		case c.waiting != nil:
			return c.waiting.Grow(needed, 0)
		}
		var err error
		c.waiting, err = c.port.flow.Enqueue(c.Flow(), flowcontrol.Cost{Resource: flowcontrol.Input, Bytes: needed})
		if err == nil {
			c.unfinished.Store(time.Now().UnixNano())
		}
		return err
	})
}

// Used says that n bytes of input were processed: a piece of a body, or the window for a piece of a response. A nil
// Conn is valid.
func (c *Conn) Used(n int64) {
	if c == nil {
		return
	}
	for {
		before := c.input.Load()
		if before == 0 {
			return
		}
		after := max(0, before-n)
		if !c.input.CompareAndSwap(before, after) {
			continue
		}
		if before > inputFree && after <= inputFree {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.waiting.Release()
			c.waiting = nil
			c.unfinished.Store(0)
		}
		return
	}
}

// hold acquires memory or seats of a flow for input of the connection. They are released when the connection ends, at
// the latest. For an unauthenticated client, it may evict another connection, and the first request waits for memory.
// The error is an *flowcontrol.Full, or net.ErrClosed.
func (c *Conn) hold(who flowcontrol.Flow, what flowcontrol.Cost) (*flowcontrol.Permit, error) {
	var permit *flowcontrol.Permit
	wait := time.Duration(0)
	if c.serving.Load() <= 1 {
		wait = evictionTimeout
	}
	err := c.port.withEviction(c, wait, func() (err error) {
		permit, err = c.port.flow.Enqueue(who, what)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		permit.Release()
		return nil, net.ErrClosed
	}
	if c.held == nil {
		c.held = map[*flowcontrol.Permit]int64{}
	}
	c.held[permit] = what.Bytes
	c.requests.Add(what.Bytes)
	return permit, nil
}

// Release releases a permit of hold.
func (c *Conn) Release(permit *flowcontrol.Permit) {
	if permit == nil {
		return
	}
	permit.Release()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests.Add(-c.held[permit])
	delete(c.held, permit)
}

// timeOf is the cost of so many bytes.
func timeOf(bytes int64, each time.Duration) time.Duration { return time.Duration(bytes) * each }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
