package impersonator

import (
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/impersonator/budget"
)

const (
	// resetWithin: a stream that the client resets sooner than this, and before its answer began, counts as a rapid reset.
	resetWithin = time.Second
	// maxResets is how many rapid resets close a connection when they are more than its other requests.
	maxResets = 500
)

// limitRapidReset closes connections whose clients open streams only to reset them (CVE-2023-44487). net/http limits
// how many streams are open at a time, but each of them costs an authentication, an access review and a request to
// the API server.
//
// Resets count for the client's address and user, whatever connection they are on. When a share is used up, the next
// connection that has more resets than other requests is closed. A stream whose answer has begun is not counted:
// clients often end a watch as soon as they have seen what they wait for.
func limitRapidReset(next http.Handler, b *budget.Budget) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		conn := connectionFrom(ctx)
		if conn == nil {
			next.ServeHTTP(w, req)
			return
		}
		started := time.Now()
		defer func() {
			state := stateFrom(ctx)
			if ctx.Err() == nil || state.answeredInTime || time.Since(started) > resetWithin {
				conn.served.Add(1)
				b.Served(state.client)
				return
			}
			resets := conn.resets.Add(1)
			exceeded := b.Reset(state.client)
			if resets > conn.served.Load() && (exceeded != nil || resets >= maxResets) {
				klog.FromContext(ctx).
					V(2).
					Info("Closed a connection that opened streams only to reset them", "client", req.RemoteAddr)
				conn.abort()
			}
		}()
		next.ServeHTTP(w, req)
	})
}
