package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// boundBody limits the time in which a client has to send its body. Streams have no limit. Without it, net/http waits
// for ever for a body that was announced and does not arrive; in HTTP/1.1 even when the handler reads nothing. A client
// could hold a connection that way without any credential.
func boundBody(next http.Handler, patience time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ContentLength == 0 {
			next.ServeHTTP(w, req)
			return
		}
		state := request.From(req.Context())
		body := &boundedBody{
			ReadCloser: req.Body, state: state, control: http.NewResponseController(w), due: time.Now().Add(patience),
		}
		_ = body.control.SetReadDeadline(body.due) // it fails only when the connection is gone
		defer body.over()
		defer state.Holds.Conn.Body()()
		state.Body = body
		req.Body = body // req is a copy: the server needs its own body in its own request
		next.ServeHTTP(w, req)
	})
}

// boundedBody is a body with a deadline until it is complete.
type boundedBody struct {
	io.ReadCloser
	state   *request.State
	control *http.ResponseController
	due     time.Time

	mu    sync.Mutex
	ended bool
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.state.LongRunning {
		b.Unbind()
	}
	n, err := b.ReadCloser.Read(p)
	b.state.Holds.Conn.Used(int64(2*n + 256)) // the overhead of a frame or a chunk counts as well
	switch {
	case err == io.EOF:
		b.Unbind()
	// A transport that gave up for another reason closes the body, perhaps while it is being read.
	case err != nil && !errors.Is(err, http.ErrBodyReadAfterClose):
		b.state.BodyFailed.Store(true)
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
	if !b.ended {
		b.ended = true
		_ = b.control.SetReadDeadline(time.Time{})
	}
}

// Late is true when the body did not arrive in time. In HTTP/1.1 net/http ends the request's context when the deadline
// passes, so a cancelled request may mean that the body is late.
func (b *boundedBody) Late() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.ended && !time.Now().Before(b.due)
}

// over is called when the handler returns. The transport may still be reading, but the writer must not be used then.
// In HTTP/1.1 the deadline stays for net/http, which first reads the rest of the body, and then sets its own.
func (b *boundedBody) over() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
}
