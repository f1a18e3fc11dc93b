package proxy

import (
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/edge"
)

// boundBody limits the time in which a client has to send its body. Streams have no limit. Without it, net/http waits
// for ever for a body that was announced and does not come, and in HTTP/1.1 it does so even when the handler reads
// nothing. A client could hold a connection that way without any credential.
func boundBody(next http.Handler, patience time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ContentLength == 0 {
			next.ServeHTTP(w, req)
			return
		}
		state := stateFrom(req.Context())
		body := &boundedBody{
			ReadCloser: req.Body,
			state:      state,
			conn:       connOf(req),
			due:        time.Now().Add(patience),
			deadline:   http.NewResponseController(w).SetReadDeadline,
		}
		body.bind(req.ProtoMajor, patience)
		defer body.over()
		if body.conn != nil {
			defer body.conn.Body()()
		}
		state.Body = body
		req.Body = body // req is a copy: the server needs its own body in its own request
		next.ServeHTTP(w, req)
	})
}

// boundedBody removes the read deadline as soon as the body has been read. In HTTP/1.1 the deadline is that of the
// whole connection, and net/http goes on reading from the connection to notice when the client disconnects. If the
// deadline stayed, it would end the request's context.
//
// In HTTP/2 each change of a deadline is a message to the goroutine of the connection, which has to wake up for it. So
// there a timer waits, and the deadline is set only when it has passed.
type boundedBody struct {
	io.ReadCloser
	state *requestState
	conn  *edge.Conn // nil in tests
	due   time.Time

	mu       sync.Mutex
	deadline func(time.Time) error // nil after the deadline was removed or the request ended
	timer    *time.Timer           // nil in HTTP/1.1
}

// bind begins to wait for the body.
func (b *boundedBody) bind(protocol int, patience time.Duration) {
	if protocol < 2 {
		_ = b.deadline(b.due) // it fails only when the connection is gone, and then reading fails too
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = time.AfterFunc(patience, b.expire)
}

// expire ends the wait for the body in HTTP/2: reading fails at once.
func (b *boundedBody) expire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.deadline != nil {
		_ = b.deadline(time.Unix(1, 0))
	}
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.state.LongRunning {
		b.Unbind()
	}
	n, err := b.ReadCloser.Read(p)
	b.conn.Used(int64(2*n + 256)) // what a frame or a chunk takes beside its content counts as well
	if err == io.EOF {
		b.Unbind()
	}
	return n, err
}

// Unbind removes the deadline. A nil body has none.
func (b *boundedBody) Unbind() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.deadline == nil:
		return
	case b.timer != nil:
		b.timer.Stop()
	default:
		_ = b.deadline(time.Time{})
	}
	b.deadline = nil
}

// Late is true when the body did not come in time. In HTTP/1.1 net/http ends the request's context when the deadline
// passes, so a cancelled request may mean that the body is late.
func (b *boundedBody) Late() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.deadline != nil && !time.Now().Before(b.due)
}

// over is called when the handler returns. The transport may still be reading, but the connection's deadline is now
// that of the next request.
func (b *boundedBody) over() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
	}
	b.deadline = nil
}
