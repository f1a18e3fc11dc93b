package impersonator

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

const (
	// A request that its client takes back so soon, and without waiting for the answer to begin, was not meant to be answered.
	takenBackWithin = time.Second
	// A connection with so many of them, and not as many others, only makes work.
	mostTakenBack = 500
)

// connection counts what one client's connection does.
type connection struct {
	net.Conn
	asked, takenBack atomic.Int64
}

type connectionKey struct{}

// withConnection is for http.Server's ConnContext.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{Conn: conn})
}

// endAbuse closes connections that open streams only to reset them (CVE-2023-44487). net/http limits how many of them run at a
// time, but each costs an authentication, an access review and a request to the API server. Streams whose answer had begun do not
// count: whoever watches until something is the case is often done at once.
func endAbuse(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		one, ok := ctx.Value(connectionKey{}).(*connection)
		if !ok {
			next.ServeHTTP(w, req)
			return
		}
		asked := one.asked.Add(1)
		started := time.Now()
		defer func() {
			if ctx.Err() == nil || stateFrom(ctx).inTime || time.Since(started) > takenBackWithin {
				return
			}
			if n := one.takenBack.Add(1); n >= mostTakenBack && n > asked/2 {
				klog.FromContext(ctx).V(2).Info("Closed a connection that opened streams only to reset them", "client", req.RemoteAddr)
				_ = one.Close()
			}
		}()
		next.ServeHTTP(w, req)
	})
}
