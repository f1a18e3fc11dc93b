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
	// resetWithin: a stream that the client resets sooner than this, and before its answer began, counts as a rapid reset.
	resetWithin = time.Second
	// maxResets is how many rapid resets close a connection, when they are also more than half of its requests.
	maxResets = 500
)

// connection counts the requests and the rapid resets of one client connection.
type connection struct {
	net.Conn
	requests, resets atomic.Int64
}

type connectionKey struct{}

// withConnection puts the counts of a connection into the context of its requests. It is the ConnContext of http.Server.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{Conn: conn})
}

// limitRapidReset closes connections whose client opens streams only to reset them (CVE-2023-44487). net/http limits how many
// streams are open at a time, but each of them costs an authentication, an access review and a request to the API server.
// A stream whose answer has begun is not counted: clients often end a watch as soon as they have seen what they wait for.
func limitRapidReset(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		conn, ok := ctx.Value(connectionKey{}).(*connection)
		if !ok {
			next.ServeHTTP(w, req)
			return
		}
		requests := conn.requests.Add(1)
		started := time.Now()
		defer func() {
			if ctx.Err() == nil || stateFrom(ctx).answeredInTime || time.Since(started) > resetWithin {
				return
			}
			if n := conn.resets.Add(1); n >= maxResets && n > requests/2 {
				klog.FromContext(ctx).V(2).Info("Closed a connection that opened streams only to reset them", "client", req.RemoteAddr)
				_ = conn.Close()
			}
		}()
		next.ServeHTTP(w, req)
	})
}
