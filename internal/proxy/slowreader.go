package proxy

import (
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/edge"
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
// slow with what the proxy can take into memory (aheadBody), and with a few larger answers at a time; one more ends after
// unreadAfter. A stream may stand still as long as the
// client likes, like logs in a pager. But what waits in memory for the client counts as the client's, and the stream
// ends when that is too much.
type slowReaders struct {
	admission *admission.Admission
	timeout   time.Duration // of each write of an ordinary answer
	ended     atomic.Int64
}

// bound gives requests a writer that knows how long each write takes.
func (r *slowReaders) bound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		one := &boundedWriter{
			ResponseWriter: w,
			control:        http.NewResponseController(w),
			readers:        r,
			state:          stateFrom(req.Context()),
			conn:           connOf(req),
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
	state   *requestState
	conn    *edge.Conn  // nil in tests
	timer   *time.Timer // nil before the first write

	mu      sync.Mutex
	writing bool
	delay   delay            // of the write that goes on
	over    bool             // the handler has returned
	waiting *admission.Place // of an answer that is not read
}

// Unwrap lets http.ResponseController find what the wrapped writer can do.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *boundedWriter) Write(p []byte) (int, error) {
	w.conn.Used(int64(len(p)/4 + 256)) // for which the client sends window updates
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

func (w *boundedWriter) isStream() bool { return w.state.IsStream() }

// delay says how long a write of an ordinary answer has taken already.
type delay int

const (
	delayShort  delay = iota
	delayAhead        // the rest of the answer is being taken into memory
	delayUnread       // the answer is counted as unread, or waits in memory as a whole
)

func (w *boundedWriter) begin() {
	patience := aheadAfter
	switch {
	case w.isStream() && w.state.Initial.Load():
		patience = unreadAfter
	case w.isStream():
		patience = slowAfter
	}
	patience = min(patience, w.readers.timeout)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing, w.delay = true, delayShort
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
	w.waiting.Leave()
	w.waiting = nil
}

// late is called when a write takes too long.
func (w *boundedWriter) late() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.writing || w.over {
		return
	}
	if more := w.mayWait(); more > 0 {
		w.timer.Reset(more)
		return
	}
	w.readers.ended.Add(1)
	w.state.leftUnread.Store(true)
	// The write fails at once. In HTTP/2 only this stream ends.
	_ = w.control.SetWriteDeadline(time.Unix(1, 0))
}

// mayWait returns for how much longer the client may leave the answer unread.
func (w *boundedWriter) mayWait() time.Duration {
	if w.isStream() {
		patience, seats := time.Duration(math.MaxInt64), 1
		if w.state.Initial.Load() { // it has as long as an ordinary answer
			patience, seats = w.readers.timeout-min(unreadAfter, w.readers.timeout), admission.UnreadAnswer
		}
		if w.waiting != nil {
			return 0
		}
		if w.waiting = w.unread(seats); w.waiting == nil {
			return 0
		}
		return patience
	}
	before := [...]time.Duration{delayShort: aheadAfter, delayAhead: unreadAfter, delayUnread: w.readers.timeout}
	waited := w.delay
	if w.delay < delayUnread {
		w.delay++
	}
	switch waited {
	case delayShort:
		if w.state.Answer != nil {
			w.state.Answer.ReadAhead()
		}
	case delayAhead:
		if !w.state.AnswerFits && (w.state.Answer == nil || !w.state.Answer.Whole()) {
			w.waiting = w.unread(admission.UnreadAnswer)
			if w.waiting == nil {
				return 0
			}
		}
	case delayUnread:
		return 0
	}
	return min(before[w.delay], w.readers.timeout) - before[waited]
}

// unread counts the answer as one that is not read. It returns nil when there are too many.
func (w *boundedWriter) unread(seats int) *admission.Place {
	who, _ := w.state.Asker()
	place, _ := w.readers.admission.Join(who, admission.Cost{Kind: admission.Unread, Seats: seats})
	return place
}

func connOf(req *http.Request) *edge.Conn {
	if holds := edge.From(req.Context()); holds != nil {
		return holds.Conn
	}
	return nil
}

// finish is called when the handler returns. net/http may still have the end of the answer to write then, unless the
// stream has ended. A deadline of one that has would keep its connection in memory until it has passed, also when that is
// closed: nothing stops its timer any more.
func (w *boundedWriter) finish(req *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if req.ProtoMajor == 2 && req.Context().Err() != nil {
		return
	}
	_ = w.control.SetWriteDeadline(time.Now().Add(w.readers.timeout))
}
