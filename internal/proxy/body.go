package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// boundBody limits the time in which a client must send its body. Streams have no limit. Otherwise, net/http waits
// forever for an announced body that does not arrive, in HTTP/1.1 even if the handler does not read it. An
// unauthenticated client could hold a connection that way.
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
		_ = body.control.SetReadDeadline(body.due) // it only fails on a closed connection
		defer body.over()
		defer state.Holds.Conn.Body()()
		state.Body = body
		req.Body = body // req is a copy: the server needs its original body in its own request
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
	b.state.Holds.Conn.Used(int64(2*n + 256)) // plus the overhead of a frame or chunk
	switch {
	case err == io.EOF:
		b.Unbind()
	// If the transport fails for another reason, it closes the body, perhaps during a read.
	case err != nil && !errors.Is(err, http.ErrBodyReadAfterClose):
		b.state.BodyFailed.Store(true)
	}
	return n, err
}

// Unbind removes the limit. A nil body is valid.
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

// Late is true when the body exceeded the limit. In HTTP/1.1, net/http cancels the request's context at the deadline,
// so a canceled request may mean that the body is late.
func (b *boundedBody) Late() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.ended && !time.Now().Before(b.due)
}

// over is called when the handler returns. The transport may still be reading, but the writer must not be used any
// more. In HTTP/1.1, the deadline remains for net/http, which first reads the rest of the body and then sets its own.
func (b *boundedBody) over() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
}
