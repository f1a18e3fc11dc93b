package proxy

import (
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
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
		state := request.From(req.Context())
		body := &boundedBody{
			ReadCloser: req.Body, state: state, control: http.NewResponseController(w), awaited: true,
		}
		body.timer = time.AfterFunc(patience, body.expire)
		defer body.over(req.ProtoMajor, time.Now().Add(patience))
		defer state.Holds.Conn.Body()()
		state.Body = body
		req.Body = body // req is a copy: the server needs its own body in its own request
		next.ServeHTTP(w, req)
	})
}

// boundedBody sets a read deadline, one that has passed, when the body has not come in time. It does not set one before:
// in HTTP/1.1 the deadline is that of the whole connection, from which net/http goes on reading to notice when the client
// disconnects, and in HTTP/2 the goroutine of the connection has to wake up for each change.
type boundedBody struct {
	io.ReadCloser
	state   *request.State
	control *http.ResponseController
	timer   *time.Timer

	mu            sync.Mutex
	awaited, late bool
}

// expire ends the wait for the body: reading fails at once.
func (b *boundedBody) expire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.awaited {
		b.late = true
		_ = b.control.SetReadDeadline(time.Unix(1, 0)) // it fails only when the connection is gone
	}
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.state.LongRunning {
		b.Unbind()
	}
	n, err := b.ReadCloser.Read(p)
	b.state.Holds.Conn.Used(int64(2*n + 256)) // what a frame or a chunk takes beside its content counts as well
	if err == io.EOF {
		b.Unbind()
	}
	return n, err
}

// Unbind ends the limit. A nil body has none.
func (b *boundedBody) Unbind() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer.Stop()
	b.awaited = false
}

// Late is true when the body did not come in time. In HTTP/1.1 net/http ends the request's context when the deadline
// passes, so a cancelled request may mean that the body is late.
func (b *boundedBody) Late() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.late
}

// over is called when the handler returns. The transport may still be reading, but the connection's deadline is now that
// of the next request. In HTTP/1.1 net/http first reads the rest of the body, and has as long for it as we had.
func (b *boundedBody) over(protocol int, due time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer.Stop() && b.awaited && protocol == 1 {
		_ = b.control.SetReadDeadline(due)
	}
	b.awaited = false
}
