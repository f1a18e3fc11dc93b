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
	// sendQueue limits the unsent bytes in the kernel for one client. Otherwise the kernel would hold megabytes, which
	// count as the agent's memory (cgroup v2) but which no limit here covers.
	sendQueue = 64 << 10
	// SmallHead is the size up to which the header of a request is not counted. Most are shorter.
	SmallHead = 8 << 10
	// inputFree is how much unprocessed input of a client does not count as memory.
	inputFree = 4 << 10
	// inputGrowth is about how many bytes of memory each byte of an incomplete header takes: in HTTP/2 one byte may
	// stand for a whole field (RFC 7541). net/http keeps at most maxInput of the fields.
	inputGrowth = 40
	// bodyGrowth and unauthenticatedBodyGrowth are the same while bodies, which may have trailers, are being received.
	bodyGrowth                = 4
	unauthenticatedBodyGrowth = 16
	// inputPatience is how much of a header is read without a penalty. It fits a large token.
	inputPatience = 192 << 10
	// inputForgiven is how much input expires each second, for connections that only send pings.
	inputForgiven = 256
	// maxHandshake limits the input of a handshake: eight large certificates with RSA keys. All are parsed before any
	// can be refused.
	maxHandshake = 32 << 10
	// unauthenticatedRead limits a read from an unauthenticated client to about ten requests. Handshakes and bodies are
	// exempt.
	unauthenticatedRead = 1 << 10
	// maxInput of unprocessed input ends the connection. It is more than net/http accepts for a header.
	maxInput = 3 << 19
)

// The penalties for wasted work, in measured processor time (docs/performance.md).
const (
	inputCost = 240 * time.Nanosecond // per byte
	headCost  = 3 * time.Nanosecond   // per byte of a large header, decoded
	// RefusalCost is the penalty for a user's refused request. ResetCost is the penalty for a user's request that was
	// reset before its response began, and for each request of an unauthenticated client.
	RefusalCost = 200 * time.Microsecond
	ResetCost   = time.Millisecond
	// FailedLoginCost is the penalty for a login with a wrong password; most of it is the authenticator's time.
	FailedLoginCost = 50 * time.Millisecond
)

var errTooMuchInput = errors.New("the client sent too much unprocessed input")

// Conn is the connection of a client, below TLS.
type Conn struct {
	net.Conn
	port     *Port
	address  string
	accepted time.Time
	ctx      context.Context //nolint:containedctx // ends with the connection; Read is not given one
	end      context.CancelFunc
	closing  sync.Once

	preAuth  atomic.Pointer[preAuth] // the pre-authentication seat for the last input
	shook    atomic.Bool             // the handshake has ended
	asked    atomic.Bool             // a request has arrived
	input    atomic.Int64            // unprocessed bytes
	forgiven time.Time               // when input expired last; only for the reading goroutine
	shaking  *flowcontrol.Permit     // the permit of its handshake; only for the reading goroutine
	// unfinished is since when the connection holds memory for input, in Unix nanoseconds; 0 for none.
	unfinished atomic.Int64
	requests   atomic.Int64 // bytes held for requests
	bodies     atomic.Int64 // requests whose body is being received
	raw        atomic.Bool  // it has switched to another protocol
	serving    atomic.Int64 // open requests
	// awaited counts the computations that the client waits for, and progress is when the last of them ended.
	awaited  atomic.Int64
	progress atomic.Int64              // in Unix nanoseconds
	penalty  flowcontrol.Penalty       // while there is no user
	user     atomic.Pointer[string]    // nil while there is none
	known    chan struct{}             // closed when user is set
	shaken   atomic.Pointer[handshake] // the pending handshake, if known
	claim    atomic.Pointer[string]    // the user if the handshake succeeds

	mu      sync.Mutex
	over    bool
	base    *flowcontrol.Permit
	waiting *flowcontrol.Permit           // of the input; nil for none
	held    map[*flowcontrol.Permit]int64 // with their bytes

	element *list.Element // in the list of its address, under Port.mu
}

type handshake struct{ over <-chan struct{} }

// Flow returns the flow of the connection, which is also that of its unauthenticated requests.
func (c *Conn) Flow() flowcontrol.Flow {
	flow := flowcontrol.Flow{Address: c.address}
	if user := c.user.Load(); user != nil {
		flow.User = *user
	}
	return flow
}

func (c *Conn) unauthenticated() bool { return c.user.Load() == nil }

// atATime returns the part of p to read before the input is counted.
func (c *Conn) atATime(p []byte) []byte {
	if c.shook.Load() && c.unauthenticated() && c.bodies.Load() == 0 {
		return p[:min(len(p), unauthenticatedRead)]
	}
	return p
}

// Read implements net.Conn. It returns input when the client's penalty has passed, there is memory for the input, and
// an unauthenticated client has a pre-authentication seat.
func (c *Conn) Read(p []byte) (int, error) {
	c.endPreAuth() // hold no seat while waiting for the client
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

// Abort resets the connection and drops unsent data, so that the kernel holds none of it.
func (c *Conn) Abort() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// Shaking records that the client has sent its ClientHello. over is closed when the handshake has ended. Input until
// then is certificates.
func (c *Conn) Shaking(over <-chan struct{}) { c.shaken.Store(&handshake{over}) }

// Claim sets the user of the connection for when the handshake succeeds: the user of a certificate that was already
// verified.
func (c *Conn) Claim(user string) { c.claim.Store(&user) }

// isShaking is true while the handshake is pending.
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

// Identified moves the connection to the flow of its first authenticated user. Behind an authenticating proxy, more
// users may follow; for them it does nothing. The error is a *flowcontrol.Full.
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
	if c.waiting.Transfer(to) != nil { // the next byte acquires it again
		c.waiting.Release()
		c.waiting = nil
		c.unfinished.Store(0)
	}
	c.port.known(c)
	c.user.Store(&user)
	close(c.known)
	return nil
}

// Upgraded records that the connection has switched to another protocol. Its input is no longer counted.
func (c *Conn) Upgraded() {
	c.raw.Store(true)
	c.Used(c.input.Load())
}

// Body records that the body of a request is being received, until done is called.
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

// awaitPenalty returns when the client's penalty has passed. When an unauthenticated client authenticates, the penalty
// of its user applies instead. If the client disconnects meanwhile, the connection ends.
func (c *Conn) awaitPenalty() {
	if c.unauthenticated() {
		runtime.Gosched() // run ready goroutines first, so that requests already received are counted
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

// waits records that the client waits for the proxy, until done is called.
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

// count acquires memory for the client's input if it is large.
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

// grow waits for a handshake seat, and acquires the memory of a connection in its handshake. It leaves a quarter of the
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

// holdInput acquires, or waits for, the memory that the input may need.
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

// Used records that n bytes of input were processed: a part of a body, or a window update for a part of a response. A
// nil Conn is valid.
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

// hold acquires memory or seats of a flow for the connection. They are released with the connection at the latest. For
// an unauthenticated client, it may evict another connection, and the first request waits for memory. The error is a
// *flowcontrol.Full, or net.ErrClosed.
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

// Release releases a permit from hold.
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

func timeOf(bytes int64, each time.Duration) time.Duration { return time.Duration(bytes) * each }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
