package impersonator

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// boundBody gives a client patience to send its body, unless it is the body of a stream that goes on. Without that, net/http
// waits without end: for a handler that reads, and, in HTTP/1.1, also before the answer of one that did not read. So whoever
// says that there is a body and sends none would keep a connection for good, known to us or not.
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
			due:        time.Now().Add(patience),
			deadline:   http.NewResponseController(w).SetReadDeadline,
		}
		_ = body.deadline(body.due) // an error says that the connection is gone, which reading tells as well
		defer body.over()
		state.awaited = body
		req.Body = body // req is not the server's own, which has to keep the body it knows
		next.ServeHTTP(w, req)
	})
}

// boundedBody takes the deadline away as soon as it does not matter any more: in HTTP/1.1 it is one of the connection, which is
// read from while the answer is awaited, to see whether the client leaves.
type boundedBody struct {
	io.ReadCloser
	state *requestState
	due   time.Time

	mu       sync.Mutex
	deadline func(time.Time) error // nil when it was taken away, or the request is over
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.state.longRunning {
		b.unbind()
	}
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.unbind()
	}
	return n, err
}

func (b *boundedBody) unbind() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.deadline != nil {
		_ = b.deadline(time.Time{})
		b.deadline = nil
	}
}

// late is true when the body did not come in time. In HTTP/1.1 net/http ends the request's context first, and only then does whoever
// reads the body hear of it.
func (b *boundedBody) late() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.deadline != nil && !time.Now().Before(b.due)
}

// over is for the end of the handler: a transport may read on, but the connection is not this request's any more.
func (b *boundedBody) over() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deadline = nil
}
