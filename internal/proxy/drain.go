package proxy

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
)

// errDraining is the cause of the end of a stream that the proxy ended because it shuts down.
var errDraining = errors.New("the impersonation proxy is shutting down")

// drain counts the requests that are being served. At shutdown it ends watches and other streams, because they do
// not end by themselves.
type drain struct {
	leaving atomic.Bool

	mu      sync.Mutex
	serving int
	streams map[*stream]struct{}
	ended   bool          // streams were ended
	wanted  bool          // the shutdown waits for idle
	idle    chan struct{} // closed when wanted and nothing is being served
}

type stream struct{ cancel context.CancelCauseFunc }

func newDrain() *drain {
	return &drain{streams: map[*stream]struct{}{}, idle: make(chan struct{})}
}

// leave makes clients take their next request elsewhere: answers say Connection: close, which is GOAWAY in HTTP/2.
func (d *drain) leave() { d.leaving.Store(true) }

// track counts every request while it is being served.
func (d *drain) track(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		d.add(1)
		defer d.add(-1)
		if d.leaving.Load() {
			closeAfterwards(w.Header())
		}
		next.ServeHTTP(w, req)
	})
}

// hold gives streams a context that ends when the proxy shuts down.
func (d *drain) hold(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		state := stateFrom(req.Context())
		if !state.longRunning && state.upgrade == "" {
			next.ServeHTTP(w, req)
			return
		}
		ctx, cancel := context.WithCancelCause(req.Context())
		defer cancel(nil)
		one := &stream{cancel: cancel}
		if !d.register(one) {
			writeStatus(w, req, s, statusUnavailable(errDraining.Error()))
			return
		}
		defer d.forget(one)
		state.end = cancel
		if state.upgrade != "" {
			w = &upgradable{ResponseWriter: w, ctx: ctx}
		}
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

func (d *drain) add(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.serving += n
	d.closeIfIdle()
}

func (d *drain) register(one *stream) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return false
	}
	d.streams[one] = struct{}{}
	return true
}

func (d *drain) forget(one *stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.streams, one)
}

// endStreams ends all streams, and those that come later.
func (d *drain) endStreams() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	for one := range d.streams {
		one.cancel(errDraining)
	}
}

// whenIdle returns a channel that is closed when no request is being served any more. It is called when no new
// requests come.
func (d *drain) whenIdle() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted = true
	d.closeIfIdle()
	return d.idle
}

func (d *drain) closeIfIdle() {
	if !d.wanted || d.serving > 0 {
		return
	}
	select {
	case <-d.idle:
	default:
		close(d.idle)
	}
}

// counts returns how many requests are being served, and how many of them are streams.
func (d *drain) counts() (serving, streams int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.serving, len(d.streams)
}
