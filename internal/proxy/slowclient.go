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
	// slowAfter is how long a write may take before the client counts as slow. It is short, because an ordinary request
	// occupies seats at the API server until its whole response is read.
	slowAfter = time.Second
	// aheadAfter is how long a write may take before the proxy buffers the rest of an ordinary response, so that the
	// API server does not wait for the client.
	aheadAfter = 20 * time.Millisecond
)

// boundResponse ends responses to slow clients.
//
// An ordinary response has a deadline for each write, so a client must read at a minimum speed. That deadline applies
// to responses that the proxy can buffer (request.ResponseBody), and to a few larger ones at a time
// (flowcontrol.SlowClient); any other slow response ends after slowAfter. A stream may pause without a time limit, like
// logs in a pager. Its buffered data counts for the client, and the stream ends when the limit is reached.
func boundResponse(next http.Handler, a *flowcontrol.Controller, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		one := &boundedWriter{
			ResponseWriter: w, control: http.NewResponseController(w), flow: a, timeout: timeout,
			state: request.From(req.Context()),
		}
		if req.ProtoMajor == 1 {
			_ = one.control.SetWriteDeadline(time.Time{}) // clear the deadline of the previous request
		}
		defer one.finish(req)
		next.ServeHTTP(one, req)
	})
}

// boundedWriter limits the duration of the writes of one response.
type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	flow    *flowcontrol.Controller
	timeout time.Duration // of each write of an ordinary response
	state   *request.State
	timer   *time.Timer // nil before the first write

	mu      sync.Mutex
	writing bool
	waited  time.Duration       // how long the pending write will have taken when the timer fires
	waiting *flowcontrol.Permit // the permit of a slow client
}

// Unwrap is for http.ResponseController.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker, which the API server's audit filter requires.
func (w *boundedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.control.Hijack() }

// Write implements http.ResponseWriter.
func (w *boundedWriter) Write(p []byte) (int, error) {
	w.state.Holds.Conn.Used(int64(len(p)/4 + 256)) // the client sends window updates for them
	w.begin()
	defer w.end()
	return w.ResponseWriter.Write(p)
}

// FlushError implements flushing for http.ResponseController.
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

// late is called when a write is slow: after aheadAfter, slowAfter and the timeout.
func (w *boundedWriter) late() {
	w.mu.Lock()
	defer w.mu.Unlock()
	body, slow := w.state.ResponseBody, min(slowAfter, w.timeout)
	// A watch that is still sending its initial list is an ordinary response.
	stream := w.state.IsStream() && !w.state.Initial.Load()
	switch {
	case !w.writing:
	case w.waited < slow:
		if body != nil {
			body.ReadAhead()
		}
		w.wait(slow)
	case w.waiting == nil && stream && w.mayStay(1):
	case w.waiting == nil && !stream && w.waited < w.timeout &&
		(w.state.ResponseFits || body != nil && body.Whole() || w.mayStay(flowcontrol.LongSeats)):
		w.wait(w.timeout)
	default:
		w.state.ClientTooSlow.Store(true)
		// The write fails at once. In HTTP/2, only this stream ends.
		_ = w.control.SetWriteDeadline(time.Unix(1, 0))
	}
}

func (w *boundedWriter) wait(until time.Duration) {
	w.timer.Reset(until - w.waited)
	w.waited = until
}

// mayStay counts the response as one to a slow client, unless there are too many.
func (w *boundedWriter) mayStay(seats int) bool {
	who, _ := w.state.Flow()
	var err error
	w.waiting, err = w.flow.Enqueue(who, flowcontrol.Cost{Resource: flowcontrol.SlowClient, Seats: seats})
	return err == nil
}

// finish is called when the handler returns, when net/http may still have to write the end of the response. An ended
// stream gets no deadline: its timer would keep the connection in memory until it fires, even if the connection is
// closed.
func (w *boundedWriter) finish(req *http.Request) {
	if req.ProtoMajor == 1 || req.Context().Err() == nil {
		_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout))
	}
}
