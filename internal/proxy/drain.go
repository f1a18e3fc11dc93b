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
	leaving          atomic.Bool
	serving, streams atomic.Int64
	requests         sync.WaitGroup  // as many as serving
	ending           context.Context //nolint:containedctx // it ends when streams have to
	endStreams       func()          // also those that come later
}

func newDrain() *drain {
	ending, end := context.WithCancel(context.Background())
	return &drain{ending: ending, endStreams: end}
}

// leave makes clients take their next request elsewhere: answers say Connection: close, which is GOAWAY in HTTP/2.
func (d *drain) leave() { d.leaving.Store(true) }

// track counts every request while it is being served.
func (d *drain) track(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		d.requests.Add(1)
		defer d.requests.Done()
		d.serving.Add(1)
		defer d.serving.Add(-1)
		if d.leaving.Load() {
			request.From(req.Context()).CloseAfterwards = true
			request.CloseAfterwards(w.Header())
		}
		next.ServeHTTP(w, req)
	})
}

// hold gives streams a context that ends when the proxy shuts down.
func (d *drain) hold(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		state := request.From(req.Context())
		if !state.IsStream() {
			next.ServeHTTP(w, req)
			return
		}
		if d.ending.Err() != nil {
			request.WriteStatus(w, req, s, request.StatusUnavailable(request.ErrDraining.Error()))
			return
		}
		d.streams.Add(1)
		defer d.streams.Add(-1)
		ctx, cancel := context.WithCancelCause(req.Context())
		defer cancel(nil)
		defer context.AfterFunc(d.ending, func() { cancel(request.ErrDraining) })()
		state.End = cancel
		if state.Upgrade != "" {
			w = &upgradable{ResponseWriter: w, ctx: ctx}
		}
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

// wait returns when no request is being served any more, or ctx has ended. It is called when no new requests come.
func (d *drain) wait(ctx context.Context) error {
	idle := make(chan struct{})
	go func() {
		d.requests.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// counts returns how many requests are being served, and how many of them are streams.
func (d *drain) counts() (serving, streams int64) { return d.serving.Load(), d.streams.Load() }

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
