package proxy

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// unreadAfter is how long a client may take to read what is written before its response counts as one that is not
	// read. It is short, as the API server goes on with an ordinary request until all of its response is taken, and has
	// room for few of them at a time.
	unreadAfter = time.Second
	// aheadAfter is when the proxy begins to take the rest of an ordinary response from the API server, so that the API
	// server need not wait for the client.
	aheadAfter = 20 * time.Millisecond
)

// boundResponse ends answers that clients do not read.
//
// An ordinary response has a deadline for each write, so a client has to read it at a minimum speed. A client may be
// that slow with what the proxy can take into memory (request.Answer), and with a few larger answers at a time; one
// more ends after unreadAfter. A stream may stand still as long as the client likes, like logs in a pager. But what
// waits in memory for the client counts as the client's, and the stream ends when that is too much.
func boundResponse(next http.Handler, a *flowcontrol.Controller, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		one := &boundedWriter{
			ResponseWriter: w, control: http.NewResponseController(w), flow: a, timeout: timeout,
			state: request.From(req.Context()),
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
	flow    *flowcontrol.Controller
	timeout time.Duration // of each write of an ordinary response
	state   *request.State
	timer   *time.Timer // nil before the first write

	mu      sync.Mutex
	writing bool
	waited  time.Duration       // how long the write that goes on will have taken when the timer fires
	waiting *flowcontrol.Permit // of a response that is not read
}

// Unwrap lets http.ResponseController find what the wrapped writer can do.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker, which the API server's audit log asks for.
func (w *boundedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.control.Hijack() }

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
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing, w.waited = true, aheadAfter
	if w.timer == nil {
		w.timer = time.AfterFunc(aheadAfter, w.late)
		return
	}
	w.timer.Reset(aheadAfter)
}

func (w *boundedWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.writing = false
	w.waiting.Release()
	w.waiting = nil
}

// late is called when a write takes long: after aheadAfter, unreadAfter and the timeout.
func (w *boundedWriter) late() {
	w.mu.Lock()
	defer w.mu.Unlock()
	answer, unread := w.state.Answer, min(unreadAfter, w.timeout)
	// A watch that begins with all objects is an ordinary response.
	stream := w.state.IsStream() && !w.state.Initial.Load()
	switch {
	case !w.writing:
	case w.waited < unread:
		if answer != nil {
			answer.ReadAhead()
		}
		w.wait(unread)
	case w.waiting == nil && stream && w.mayStay(1):
	case w.waiting == nil && !stream && w.waited < w.timeout &&
		(w.state.AnswerFits || answer != nil && answer.Whole() || w.mayStay(flowcontrol.LongSeats)):
		w.wait(w.timeout)
	default:
		w.state.LeftUnread.Store(true)
		// The write fails at once. In HTTP/2 only this stream ends.
		_ = w.control.SetWriteDeadline(time.Unix(1, 0))
	}
}

func (w *boundedWriter) wait(until time.Duration) {
	w.timer.Reset(until - w.waited)
	w.waited = until
}

// mayStay counts the response as one that is not read, unless there are too many.
func (w *boundedWriter) mayStay(seats int) bool {
	who, _ := w.state.Asker()
	var err error
	w.waiting, err = w.flow.Enqueue(who, flowcontrol.Cost{Resource: flowcontrol.SlowClient, Seats: seats})
	return err == nil
}

// finish is called when the handler returns. net/http may still have the end of the response to write then, unless the
// stream has ended. A deadline of one that has would keep its connection in memory until it has passed, also when that
// is closed: nothing stops its timer any more.
func (w *boundedWriter) finish(req *http.Request) {
	if req.ProtoMajor == 1 || req.Context().Err() == nil {
		_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout))
	}
}
