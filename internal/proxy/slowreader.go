package proxy

import (
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// slowAfter is how long a client may take to read what is written to a stream before the stream counts as one that
	// is not read.
	slowAfter = 2 * time.Second
	// unreadAfter is the same for an ordinary answer. It is short, as the API server goes on with such a request until
	// all of its answer is taken, and has room for few of them at a time.
	unreadAfter = time.Second
	// aheadAfter is when the proxy begins to take the rest of an ordinary answer from the API server, so that the API server
	// need not wait for the client.
	aheadAfter = 20 * time.Millisecond
)

// slowReaders ends answers that clients do not read.
//
// An ordinary answer has a deadline for each write, so a client has to read it at a minimum speed. A client may be that
// slow with what the proxy can take into memory (request.Answer), and with a few larger answers at a time; one more ends
// after unreadAfter. A stream may stand still as long as the client likes, like logs in a pager. But what waits in memory
// for the client counts as the client's, and the stream ends when that is too much.
type slowReaders struct {
	admission *admission.Admission
	timeout   time.Duration // of each write of an ordinary answer
}

// bound gives requests a writer that knows how long each write takes.
func (r *slowReaders) bound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		one := &boundedWriter{
			ResponseWriter: w, control: http.NewResponseController(w), readers: r, state: request.From(req.Context()),
		}
		if req.ProtoMajor == 1 {
			_ = one.control.SetWriteDeadline(time.Time{}) // that of the request before
		}
		defer one.finish(req)
		next.ServeHTTP(one, req)
	})
}

// boundedWriter watches the writes of one answer.
type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	readers *slowReaders
	state   *request.State
	timer   *time.Timer // nil before the first write

	mu      sync.Mutex
	writing bool
	waited  time.Duration    // how long the write that goes on will have taken when the timer fires
	waiting *admission.Place // of an answer that is not read
}

// Unwrap lets http.ResponseController find what the wrapped writer can do.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *boundedWriter) Write(p []byte) (int, error) {
	w.state.Holds.Conn.Used(int64(len(p)/4 + 256)) // for which the client sends window updates
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

func (w *boundedWriter) begin() {
	patience := aheadAfter
	switch {
	case w.state.IsStream() && w.state.Initial.Load():
		patience = unreadAfter
	case w.state.IsStream():
		patience = slowAfter
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing, w.waited = true, min(patience, w.readers.timeout)
	if w.timer == nil {
		w.timer = time.AfterFunc(w.waited, w.late)
		return
	}
	w.timer.Reset(w.waited)
}

func (w *boundedWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.writing = false
	w.waiting.Leave()
	w.waiting = nil
}

// late is called when a write takes too long.
func (w *boundedWriter) late() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.writing {
		return
	}
	if until := w.mayTake(); until > w.waited {
		w.timer.Reset(until - w.waited)
		w.waited = until
		return
	}
	w.state.LeftUnread.Store(true)
	// The write fails at once. In HTTP/2 only this stream ends.
	_ = w.control.SetWriteDeadline(time.Unix(1, 0))
}

// mayTake returns how long the write may take until late is called again, zero when it has to end.
func (w *boundedWriter) mayTake() time.Duration {
	answer, timeout := w.state.Answer, w.readers.timeout
	switch {
	case w.waiting != nil:
		return 0
	case w.state.IsStream() && !w.state.Initial.Load():
		return w.unread(1, math.MaxInt64)
	case w.waited >= timeout:
		return 0
	case w.waited < unreadAfter:
		if answer != nil {
			answer.ReadAhead()
		}
		return min(unreadAfter, timeout)
	case w.state.AnswerFits, answer != nil && answer.Whole():
		return timeout
	default: // a watch that begins with all objects has as long as an ordinary answer
		return w.unread(admission.UnreadAnswer, timeout)
	}
}

// unread counts the answer as one that is not read, and returns until when that may be: zero when there are too many.
func (w *boundedWriter) unread(seats int, until time.Duration) time.Duration {
	who, _ := w.state.Asker()
	var err error
	if w.waiting, err = w.readers.admission.Join(who, admission.Cost{Kind: admission.Unread, Seats: seats}); err != nil {
		return 0
	}
	return until
}

// finish is called when the handler returns. net/http may still have the end of the answer to write then, unless the
// stream has ended. A deadline of one that has would keep its connection in memory until it has passed, also when that is
// closed: nothing stops its timer any more.
func (w *boundedWriter) finish(req *http.Request) {
	if req.ProtoMajor == 1 || req.Context().Err() == nil {
		_ = w.control.SetWriteDeadline(time.Now().Add(w.readers.timeout))
	}
}
