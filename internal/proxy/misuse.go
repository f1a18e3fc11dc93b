package proxy

import (
	"context"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// resetWithin: a stream that the client resets sooner than this, and before its answer began, counts as a rapid reset.
	resetWithin = time.Second
	// maxResets is how many rapid resets close a connection of a user when they are more than its other requests.
	maxResets = 500
	// After maxRefusals requests that were refused, if they are more than the others, a connection ends with its next
	// answer: Connection: close, or GOAWAY.
	maxRefusals = 8
	// An HTTP/2 connection on which no user has authenticated is shut after maxMisused requests that were refused or reset,
	// if they are more than the others. While the share of resets is full, misusedUnderAttack are enough.
	maxMisused         = 16
	misusedUnderAttack = 1
	// shutWait is how long requests that were under way on such a connection may take to end.
	shutWait = identity.ReviewTimeout
	// unreadWhenShut is the same for requests whose handler has returned, and whose answer the client does not take.
	unreadWhenShut = time.Second
	// readWhenShut is how many bytes are still read from it, for the windows of answers that are under way.
	readWhenShut = 2 << 10
	// A request that is refused counts once more for each heavyHeader of its header.
	heavyHeader = 16 << 10
)

// limitMisuse closes connections whose clients cause work that comes to nothing: streams that are opened only to be
// reset (CVE-2023-44487), and requests that are refused, for one because their credential is no good. net/http limits
// how many streams are open at a time, but each of them costs an authentication, and perhaps a review. A client that
// has to connect anew pays for a TLS handshake, about as much as we do.
//
// Resets count for the client's address and user, whatever connection they are on; so do refusals as long as there is
// no user. When a share is used up, connections are closed sooner. A stream whose answer has begun is not counted:
// clients often end a watch as soon as they have seen what they wait for.
//
// Over HTTP/1 no connection is closed before the answer. A load balancer may send requests of many clients over one.
func limitMisuse(next http.Handler, b *budget.Budget) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		conn := connectionFrom(ctx)
		if conn == nil {
			next.ServeHTTP(w, req)
			return
		}
		state := stateFrom(ctx)
		if refused := conn.refused.Load(); refused >= maxRefusals && refused > conn.served.Load() {
			state.CloseAfterwards = true
			request.CloseAfterwards(w.Header())
		}
		if conn.user.Load() == nil { // a client that is refused too often learns with the answer that it is the last one
			state.measured.answer.before = func(code int) {
				if state.Client.User == "" && isRefusal(state, code) && conn.isEnough(1) {
					state.CloseAfterwards = true
					request.CloseAfterwards(w.Header())
					conn.hesitate(ctx)
				}
			}
		}
		returned := false
		defer func() {
			switch {
			case ctx.Err() != nil && !state.AnsweredInTime && time.Since(state.measured.began) <= resetWithin:
				conn.reset(ctx, b, state.Client)
			case state.leftUnread.Load():
				// The API server has begun the answer for nothing.
				conn.reset(ctx, b, state.Client)
			case isRefusal(state, state.measured.answer.code):
				header := memoryOfHead(req)
				if header > small && req.ProtoMajor == 2 {
					// The answer may have to wait for the client, and nothing counts the header that long.
					clear(req.Header)
				}
				conn.refuse(ctx, b, state.Client, 1+header/heavyHeader, req.ProtoMajor)
			case conn.shut.Load(): // it ended with the connection, and makes up for nothing
			case ctx.Err() != nil && !state.AnsweredInTime: // the client left before, but not soon
			case !returned && state.measured.answer.code == codeNone: // it was broken off without an answer
			default:
				conn.served.Add(1)
				b.Served(state.Client)
			}
		}()
		next.ServeHTTP(w, req)
		returned = true
	})
}

// isRefusal is true when a request was refused because of who the client is, or because it wants too much: a login that
// failed, too, whose answer is 201. For a client without a user that is every answer that says no.
func isRefusal(state *requestState, code int) bool {
	if state.loginFailed || state.refusedSilently {
		return true
	}
	switch code {
	case http.StatusUnauthorized, http.StatusTooManyRequests:
		return true
	default:
		return state.Client.User == "" && code >= http.StatusBadRequest
	}
}

// reset counts a stream that the client reset before its answer began, and closes the connection if they are too many.
func (c *clientConn) reset(ctx context.Context, b *budget.Budget, client budget.Client) {
	resets := c.resets.Add(1)
	exceeded := b.Misused(client, 1)
	if client.User == "" {
		c.endMisuse(ctx)
		return
	}
	if resets > c.served.Load() && (exceeded || resets >= maxResets) && !c.shut.Swap(true) {
		c.logMisuse(ctx)
		c.abort()
	}
}

// refuse counts a request that was refused as n. Those of users end the connection with a later answer only.
func (c *clientConn) refuse(ctx context.Context, b *budget.Budget, client budget.Client, n int64, protocol int) {
	c.refused.Add(n)
	if client.User != "" {
		return
	}
	if b.Misused(client, n); protocol == 2 {
		c.endMisuse(ctx)
	}
}

// endMisuse shuts a connection without a user if more than enough on it was refused or reset: it is closed when the
// requests that are under way have been answered, and others are reset.
func (c *clientConn) endMisuse(ctx context.Context) {
	if !c.isEnough(0) || c.shut.Swap(true) {
		return
	}
	c.logMisuse(ctx)
	c.end.Store(time.AfterFunc(shutWait, c.abort))
	c.closeIfShut()
}

// isEnough is true when with n more enough on a connection without a user was refused or reset.
func (c *clientConn) isEnough(n int64) bool {
	misused := n + c.resets.Load() + c.refused.Load()
	return misused > c.served.Load() &&
		(misused >= maxMisused || misused >= misusedUnderAttack && c.underAttack())
}

// closeIfShut closes a connection that is shut and on which no request is under way. When there are only answers that
// the client does not take, it gets a little time for them.
func (c *clientConn) closeIfShut() {
	switch {
	case !c.shut.Load():
	case c.serving.Load() == 0:
		_ = c.Close()
	case c.handling.Load() == 0:
		if end := c.end.Load(); end != nil && !c.hurried.Swap(true) {
			end.Reset(unreadWhenShut)
		}
	}
}

func (c *clientConn) logMisuse(ctx context.Context) {
	c.all.misused.Add(1)
	klog.FromContext(ctx).V(2).Info("Closed a connection whose requests came to nothing",
		"client", c.RemoteAddr().String(), "reset", c.resets.Load(), "refused", c.refused.Load(), "served", c.served.Load())
}
