package proxy

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// drain counts the open requests. At shutdown it ends watches and other streams, which do not end by themselves.
type drain struct {
	leaving          atomic.Bool // responses have Connection: close
	serving, streams atomic.Int64
	ending           context.Context //nolint:containedctx // it ends when streams have to
	endStreams       func()          // ends current and future streams
}

func newDrain() *drain {
	ending, end := context.WithCancel(context.Background())
	return &drain{ending: ending, endStreams: end}
}

// track counts every open request. While leaving, responses have Connection: close, which is GOAWAY in HTTP/2.
func (d *drain) track(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
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
		state.Switched = func(client net.Conn) {
			// ReverseProxy would only close the connection to the API server, and wait for the client.
			context.AfterFunc(ctx, func() { _ = client.Close() })
		}
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

// wait returns when no request is open, or ctx has ended. No new requests may arrive.
func (d *drain) wait(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(context.Context) (bool, error) {
		return d.serving.Load() == 0, nil
	})
}
