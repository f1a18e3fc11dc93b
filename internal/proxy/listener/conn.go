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
	// sendQueue is how many bytes may wait in the kernel for one client, beside what is on its way. The kernel would hold
	// megabytes, counts them as the agent's memory (cgroup v2), and no bound of ours would know.
	sendQueue = 64 << 10
	// SmallHead is from which size on the head of a request is counted as what it takes. Most are shorter.
	SmallHead = 8 << 10
	// inputFree is how much a client may have sent that nothing has come of before it counts as memory.
	inputFree = 4 << 10
	// inputGrowth is about how many bytes of memory each byte of a head takes that is not complete: in HTTP/2 one byte may
	// stand for a whole field (RFC 7541). net/http keeps no more than maxInput of the fields.
	inputGrowth = 40
	// bodyGrowth and strangersBodyGrowth are the same while bodies are on their way, beside which trailers may come.
	bodyGrowth                = 4
	unauthenticatedBodyGrowth = 16
	// inputPatience is how much of a head is read for nothing, with room for a large token. What comes beyond is a
	// penalty.
	inputPatience = 192 << 10
	// inputForgiven is how much of it is forgotten in a second, for connections on which nothing but pings comes.
	inputForgiven = 256
	// maxHandshake is how much may come in a handshake: eight large certificates with RSA keys. All are parsed before any
	// can be refused.
	maxHandshake = 32 << 10
	// unauthenticatedRead is how many bytes of an unauthenticated client are read at a time: some ten requests. Handshakes
	// and bodies have no such bound.
	unauthenticatedRead = 1 << 10
	// maxInput ends the connection. It is more than net/http takes of a head.
	maxInput = 3 << 19
)

// What comes to nothing costs so much processor time, measured (docs/performance.md).
const (
	inputCost = 240 * time.Nanosecond // each byte
	headCost  = 3 * time.Nanosecond   // each byte of a large head, decoded
	// RefusalCost is that of a user's refused request. ResetCost is that of a user's request that was reset before its
	// answer began, and of an unauthenticated client's request, whatever comes of it.
	RefusalCost = 200 * time.Microsecond
	ResetCost   = time.Millisecond
	// FailedLoginCost is that of a login with a wrong password, most of which is the authenticator's.
	FailedLoginCost = 50 * time.Millisecond
)

var errTooMuchInput = errors.New("the client sent too much that came to nothing")

// Conn is the connection of one client, below TLS.
type Conn struct {
	net.Conn
	port     *Port
	address  string
	accepted time.Time
	ctx      context.Context //nolint:containedctx // ends with the connection; Read is not given one
	end      context.CancelFunc
	closing  sync.Once

	preAuth  atomic.Pointer[preAuth] // of what is computed of what was read
	shook    atomic.Bool             // the handshake is over
	asked    atomic.Bool             // a request has come
	input    atomic.Int64            // bytes that nothing has come of
	forgiven time.Time               // when some of the input was forgotten last; the one goroutine that reads uses it
	shaking  *flowcontrol.Permit     // the turn of its handshake; the one goroutine that reads uses it
	// unfinished is since when memory is held for what it sent, in Unix nanoseconds; 0 when none is.
	unfinished atomic.Int64
	requests   atomic.Int64 // bytes held for requests
	bodies     atomic.Int64 // requests whose body is on its way
	raw        atomic.Bool  // it speaks another protocol by now
	serving    atomic.Int64 // requests
	// awaited counts what the client waits for us to compute, and progress is when the last of it was done.
	awaited  atomic.Int64
	progress atomic.Int64              // in Unix nanoseconds
	penalty  flowcontrol.Penalty       // as long as there is no user
	user     atomic.Pointer[string]    // nil as long as there is none
	known    chan struct{}             // closed when there is one
	shaken   atomic.Pointer[handshake] // the handshake that goes on, as far as that is known
	claim    atomic.Pointer[string]    // whose it is when that succeeds

	mu      sync.Mutex
	over    bool
	base    *flowcontrol.Permit
	waiting *flowcontrol.Permit           // what the input takes, nil for nothing
	held    map[*flowcontrol.Permit]int64 // with the bytes of each

	element *list.Element // among the unauthenticated clients of its address, under Port.mu
}

type handshake struct{ over <-chan struct{} }

// Flow returns to whom the connection counts, and what comes over it as long as it is not authenticated itself.
func (c *Conn) Flow() flowcontrol.Flow {
	flow := flowcontrol.Flow{Address: c.address}
	if user := c.user.Load(); user != nil {
		flow.User = *user
	}
	return flow
}

func (c *Conn) unauthenticated() bool { return c.user.Load() == nil }

// atATime returns as much of p as may be read before what came is counted.
func (c *Conn) atATime(p []byte) []byte {
	if c.shook.Load() && c.unauthenticated() && c.bodies.Load() == 0 {
		return p[:min(len(p), unauthenticatedRead)]
	}
	return p
}

// Read implements net.Conn. It returns what came as soon as three things are true: the client has paid its penalty,
// there is memory for what came, and it is the client's turn, if it is an unauthenticated client.
func (c *Conn) Read(p []byte) (int, error) {
	c.endPreAuth() // no client is waited for during a turn
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
	c.endPreAuth() // p is what was computed
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

// Abort closes the connection without a word, and drops what it has not sent, so that the kernel holds nothing of it.
func (c *Conn) Abort() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// Shaking says that the client has said hello, and that over is closed when the handshake has ended. What comes until
// then are certificates.
func (c *Conn) Shaking(over <-chan struct{}) { c.shaken.Store(&handshake{over}) }

// Claim says whose the connection is if the handshake succeeds: somebody whose certificate was verified before.
func (c *Conn) Claim(user string) { c.claim.Store(&user) }

// isShaking is true while it is known that the handshake goes on.
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
		_ = c.Identified(*user) // when there is no room, it stays an unauthenticated client's until its request is refused
	}
}

// Identified counts the connection for its first authenticated user. Behind an authenticating proxy others may follow;
// for these it does nothing. The error is an *flowcontrol.Full.
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
	if c.waiting.Transfer(to) != nil { // it is asked for again with the next byte
		c.waiting.Release()
		c.waiting = nil
		c.unfinished.Store(0)
	}
	c.port.known(c)
	c.user.Store(&user)
	close(c.known)
	return nil
}

// Upgraded says that the connection speaks another protocol from now on. What comes over it is not looked at.
func (c *Conn) Upgraded() {
	c.raw.Store(true)
	c.Used(c.input.Load())
}

// Body says that the body of a request is on its way, until done is called.
func (c *Conn) Body() (done func()) {
	c.bodies.Add(1)
	return func() { c.bodies.Add(-1) }
}

// Penalize counts what cost so much processor time and came to nothing.
func (c *Conn) Penalize(cost time.Duration) {
	if user := c.user.Load(); user != nil {
		c.port.flow.Penalize(*user, cost)
		return
	}
	c.port.flow.PenalizeUnauthenticated(&c.penalty, cost, c.port.Unauthenticated())
}

// awaitPenalty returns when the client has no penalty. As soon as there is a user, what was owed before does not count.
// The connection ends if the client has left meanwhile.
func (c *Conn) awaitPenalty() {
	if c.unauthenticated() {
		runtime.Gosched() // all who are ready go first, and so its requests that are here already are counted
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

// waits says that the client waits for us, until done is called.
func (c *Conn) waits() (done func()) {
	c.awaited.Add(1)
	return func() {
		c.progress.Store(time.Now().UnixNano())
		c.awaited.Add(-1)
	}
}

// received counts what came. It returns when there is memory for it, and when it is an unauthenticated client's turn.
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

// count has the client's input take memory, if there is much of it.
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

// grow waits for the turn of the handshake, and takes the memory that the connection takes from there on. It leaves a
// quarter of what unauthenticated clients have for what they ask then (Request.enter).
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

// holdInput takes the memory that the input may take. When there is none, it waits for room.
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
		case c.input.Load() <= inputFree: // something came of it meanwhile
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

// Used says that something came of n bytes that the client sent: a piece of a body, or room for a piece of a response.
// A nil Conn is none.
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

// hold takes memory or turns of a flow for what came over the connection. They are given back when the connection ends,
// at the latest. For an unauthenticated client, the connection of another one is closed if need be, and the first
// request waits for room. The error is an *flowcontrol.Full, or net.ErrClosed.
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

// Release gives back what hold took.
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

// timeOf is what so many bytes cost.
func timeOf(bytes int64, each time.Duration) time.Duration { return time.Duration(bytes) * each }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
