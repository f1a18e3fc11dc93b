package proxy

import (
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// resetWithin: a stream that the client resets sooner than this, and before its response began, is a penalty.
const resetWithin = time.Second

// report makes a penalty of requests that caused work and came to nothing: streams that are opened only to be reset
// (CVE-2023-44487), answers that are not read, logins that fail, and requests that are refused. Whatever an
// unauthenticated client asks for is a penalty before (listener.Handler). A stream whose answer has begun is none:
// clients often end a watch as soon as they have seen what they wait for.
func report(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		state := request.From(ctx)
		defer func() {
			switch {
			case state.LoginFailed:
				state.Holds.Conn.Penalize(listener.FailedLoginCost)
			case state.Holds.Flow().Unauthenticated(): // it owes already
			case ctx.Err() != nil && !state.AnsweredInTime && time.Since(state.Began) <= resetWithin,
				state.LeftUnread.Load():
				state.Holds.Conn.Penalize(listener.ResetCost)
			case state.Code == http.StatusUnauthorized, state.Code == http.StatusTooManyRequests:
				state.Holds.Conn.Penalize(listener.RefusalCost)
			}
		}()
		next.ServeHTTP(w, req)
	})
}

// identify makes the request, and its connection if it had no user yet, that of the authenticated user.
func identify(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		state := request.From(req.Context())
		name := ""
		if who, ok := apirequest.UserFrom(req.Context()); ok && !request.IsAnonymous(who) {
			name = who.GetName()
		}
		if err := state.Holds.Identified(name, state.IsStream()); err != nil {
			refuseFull(w, req, s, err)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// refuseFull refuses a request for which there is no memory. A connection without a user ends with the response.
func refuseFull(w http.ResponseWriter, req *http.Request, s runtime.NegotiatedSerializer, err error) {
	if holds := listener.From(req.Context()); holds == nil || holds.Flow().Unauthenticated() {
		request.CloseAfterwards(w.Header())
	}
	request.WriteStatus(w, req, s, request.StatusFull(err))
}
