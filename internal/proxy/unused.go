package proxy

import (
	"container/list"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

const (
	// unusedFree is how much a client may have sent without effect before it counts. Most headers are shorter. A TLS
	// handshake does not count here: see maxHandshake.
	unusedFree = 1 << 10
	// unusedTolerated is how much of a header is read at once though its share is full: a header with a token.
	unusedTolerated = 2 << 10
	// unusedStep: of a longer header, memory is taken for as many bytes at a time. It is a header of 8 KiB with its frames
	// and TLS records. An attacker's next connection costs the decoding of that much.
	unusedStep = 10 << 10
	// unusedPiece is the least memory that is taken from the budget for it at a time.
	unusedPiece = 64 << 10
	// unusedPaced is how much of it is read at full speed, and unusedSpeed how much of the rest in a second.
	unusedPaced = 128 << 10
	unusedSpeed = 256 << 10
	// unusedForgiven is how much of it is forgotten in a second, for connections on which nothing but pings comes.
	unusedForgiven = 256
	// maxUnused ends the connection. It is more than the longest header needs with its frames and TLS records.
	maxUnused = maxHeaderBytes + maxHeaderBytes/8

	// What a byte of an unfinished header may take in memory: in HTTP/1 the shortest line is one more entry of a map, in
	// HTTP/2 one byte may stand for a whole field. Of the fields of HTTP/2, net/http keeps at most mostFields.
	unusedHTTP1 = 20
	unusedHTTP2 = 40
	mostFields  = 3 << 19
	// When bodies are on their way, most of it is a body, for which its request has taken memory from the budget.
	unusedWithBody = 4
	// In HTTP/2 it may also be trailers without an end, and then a byte takes much more.
	unusedWithBodyHTTP2 = 16
)

// unused is what a client has sent on a connection and what has come to nothing yet: the beginning of a header, or frames
// that nothing follows from, such as PING or PRIORITY. No handler runs for these, so they count here. Their memory is
// taken from the budget, they are read slowly when they get many, and in the end they cost the connection.
//
// A header that is complete, each piece of a body that is read, and each piece of an answer make up for what was sent.
type unused struct {
	bytes  atomic.Int64
	bodies atomic.Int64 // requests whose body has not been read to its end
	held   atomic.Int64 // memory taken from the budget

	http1    atomic.Bool // the client does not speak HTTP/2
	upgraded atomic.Bool // to a protocol that is not ours

	forgiven time.Time // the one goroutine that reads uses it

	mu       sync.Mutex
	over     bool // the connection is closed
	holdings []*budget.Holding
	reserved int64         // memory taken from the reserve
	place    *list.Element // among those with holdings; nil when there are none
	headers  *headers
}

var errUnused = errors.New("the client sent too much that came to nothing")

// countUnused counts what was read. It waits when the client sends too fast, and returns an error when it sends too much.
func (c *clientConn) countUnused(n int) error {
	u := &c.unused
	if !c.certified.Load() || u.upgraded.Load() || u.bytes.Add(int64(n)) <= unusedFree {
		return nil
	}
	now := time.Now()
	if u.forgiven.IsZero() {
		u.forgiven = c.accepted
	}
	if since := now.Sub(u.forgiven); since >= time.Second {
		u.forgiven = now
		u.use(int64(since.Seconds() * unusedForgiven))
	}
	most, paced := int64(maxUnused), int64(unusedPaced)
	if u.bodies.Load() > 0 {
		most, paced = most+connectionBody, paced+connectionBody
	}
	if err := c.all.headers.hold(c, now); err != nil {
		return err
	}
	switch bytes := u.bytes.Load(); {
	case bytes > most:
		c.all.misused.Add(1)
		klog.Background().V(2).Info("Closed a connection that sent too much without effect",
			"client", c.RemoteAddr().String(), "bytes", bytes)
		c.abort()
		return errUnused
	case bytes > paced:
		c.waitOrGone(time.Duration(n) * time.Second / unusedSpeed)
	}
	return nil
}

func (c *clientConn) waitOrGone(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.gone:
	case <-timer.C:
	}
}

// memory returns about how much memory the bytes take, and those that may be read without asking again.
func (u *unused) memory() int64 {
	bytes := u.bytes.Load()
	switch {
	case bytes <= unusedFree:
		return 0
	case u.bodies.Load() > 0 && u.http1.Load():
		return bytes * unusedWithBody
	case u.bodies.Load() > 0:
		return min(bytes*unusedWithBodyHTTP2, bytes+mostFields)
	}
	if bytes > unusedTolerated {
		bytes = (bytes + unusedStep - 1) / unusedStep * unusedStep
	}
	if u.http1.Load() {
		return bytes * unusedHTTP1
	}
	return min(bytes*unusedHTTP2, bytes+mostFields)
}

// use says that n bytes that the client sent were of use.
func (u *unused) use(n int64) {
	for {
		before := u.bytes.Load()
		if before == 0 {
			return
		}
		if u.bytes.CompareAndSwap(before, max(0, before-n)) {
			break
		}
	}
	if u.held.Load() > 0 {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.bytes.Load() <= unusedFree {
			u.release()
		}
	}
}

// useAll says that all that the client sent was of use.
func (u *unused) useAll() { u.use(u.bytes.Load()) }

// end is called when the connection is closed.
func (u *unused) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	u.release()
}

// release gives all memory back. The caller holds u.mu.
func (u *unused) release() {
	for _, holding := range u.holdings {
		holding.Release()
	}
	u.headers.forget(u.place, u.reserved)
	u.holdings, u.place, u.reserved = nil, nil, 0
	u.held.Store(0)
}

// useReceived makes up for what a client sent when a header is complete. It is the outermost filter.
func useReceived(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if conn := connectionFrom(req.Context()); conn != nil {
			conn.unused.useAll()
			conn.decodedHead(memoryOfHead(req), req.ProtoMajor)
		}
		defer forgetHead(req)
		next.ServeHTTP(w, req)
	})
}

// useBody says that a piece of a body was read. What a frame or a chunk takes beside its content counts as well.
func (c *clientConn) useBody(n int) {
	if c != nil {
		c.unused.use(int64(2*n + 256))
	}
}

// useAnswer says that a piece of an answer is written, for which clients send window updates.
func (c *clientConn) useAnswer(n int) {
	if c != nil {
		c.unused.use(int64(n/4 + 256))
	}
}
