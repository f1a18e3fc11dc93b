package impersonator

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/impersonator/budget"
)

const (
	// slowAfter is how long a client may take to read what is written to a stream before the stream counts as one that
	// is not read.
	slowAfter = 2 * time.Second
	// unreadAfter is the same for an ordinary answer. It is short, as the API server goes on with such a request until
	// all of its answer is taken, and has room for few of them at a time.
	unreadAfter = time.Second
)

// slowReaders ends answers that clients do not read.
//
// An ordinary answer has a deadline for each write, so a client has to read it at a minimum speed. A client may be that
// slow with a few answers at a time only; one more ends after unreadAfter. A stream may stand still as long as the
// client likes, like logs in a pager. But what waits in memory for the client counts as the client's, and the stream
// ends when that is too much.
type slowReaders struct {
	budget  *budget.Budget
	timeout time.Duration // of each write of an ordinary answer
	ended   atomic.Int64
}

// bound gives requests a writer that knows how long each write takes.
func (r *slowReaders) bound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		one := &boundedWriter{
			ResponseWriter: w,
			control:        http.NewResponseController(w),
			readers:        r,
			state:          stateFrom(req.Context()),
		}
		if req.ProtoMajor == 1 {
			_ = one.control.SetWriteDeadline(time.Time{}) // that of the request before
		}
		defer one.finish()
		next.ServeHTTP(one, req)
	})
}

// boundedWriter watches the writes of one answer.
type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	readers *slowReaders
	state   *requestState
	timer   *time.Timer // nil before the first write

	mu      sync.Mutex
	writing bool
	over    bool            // the handler has returned
	waiting *budget.Holding // of an answer that is not read
}

// Unwrap lets http.ResponseController find what the wrapped writer can do.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *boundedWriter) Write(p []byte) (int, error) {
	w.begin()
	defer w.end()
	return w.ResponseWriter.Write(p)
}

// FlushError is what http.ResponseController calls to flush.
func (w *boundedWriter) FlushError() error {
	w.begin()
	defer w.end()
	return w.control.Flush()
}

func (w *boundedWriter) isStream() bool { return w.state.longRunning || w.state.upgrade != "" }

func (w *boundedWriter) begin() {
	patience := min(unreadAfter, w.readers.timeout)
	if w.isStream() {
		patience = min(slowAfter, w.readers.timeout)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing = true
	if w.timer == nil {
		w.timer = time.AfterFunc(patience, w.late)
		return
	}
	w.timer.Reset(patience)
}

func (w *boundedWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.writing = false
	w.waiting.Release()
	w.waiting = nil
}

// late is called when a write takes too long.
func (w *boundedWriter) late() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.writing || w.over {
		return
	}
	if w.mayWait() {
		return
	}
	w.readers.ended.Add(1)
	// The write fails at once. In HTTP/2 only this stream ends.
	_ = w.control.SetWriteDeadline(time.Unix(1, 0))
}

// mayWait reports whether the client may leave the answer unread for longer.
func (w *boundedWriter) mayWait() bool {
	resource, n, rest := budget.Unread, int64(1), w.readers.timeout-unreadAfter
	if w.isStream() {
		resource, n = budget.Bytes, streamBytes
	} else if w.waiting != nil || rest <= 0 {
		return false // it has waited
	}
	waiting, err := w.readers.budget.Acquire(w.state.client, resource, n)
	if err != nil {
		return false
	}
	w.waiting = waiting
	if !w.isStream() {
		w.timer.Reset(rest)
	}
	return true
}

// finish is called when the handler returns. net/http may still have the end of the answer to write then.
func (w *boundedWriter) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	_ = w.control.SetWriteDeadline(time.Now().Add(w.readers.timeout))
}
