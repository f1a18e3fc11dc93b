package proxy

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/edge"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

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
			request.CloseAfterwards(w.Header())
		}
		next.ServeHTTP(w, req)
	})
}

// hold gives streams a context that ends when the proxy shuts down.
func (d *drain) hold(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		state := stateFrom(req.Context())
		if !state.LongRunning && state.Upgrade == "" {
			next.ServeHTTP(w, req)
			return
		}
		ctx, cancel := context.WithCancelCause(req.Context())
		defer cancel(nil)
		one := &stream{cancel: cancel}
		if !d.register(one) {
			request.WriteStatus(w, req, s, request.StatusUnavailable(request.ErrDraining.Error()))
			return
		}
		defer d.forget(one)
		state.End = cancel
		if state.Upgrade != "" {
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
		one.cancel(request.ErrDraining)
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

// upgradable closes the client's connection when ctx ends after a switch of protocols. ReverseProxy would close only
// the connection to the API server, and wait for the client.
type upgradable struct {
	http.ResponseWriter
	ctx context.Context //nolint:containedctx // it lives as long as this one request
}

// Unwrap lets http.ResponseController find what the wrapped writer can do.
func (w *upgradable) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker.
func (w *upgradable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		if one := edge.Below(conn); one != nil {
			one.Upgraded()
		}
		// The context ends at the latest when the handler returns, and then the connection is done with.
		context.AfterFunc(w.ctx, func() { _ = conn.Close() })
	}
	return conn, buffered, err
}
