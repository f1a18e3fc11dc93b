package proxy

import (
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// resetWithin is how long after its start a reset request is penalized.
const resetWithin = time.Second

// report penalizes wasted work: streams that are opened only to be reset (CVE-2023-44487), responses to slow clients,
// failed logins, and refused requests. Each request of an unauthenticated client already has a penalty
// (listener.Handler). A reset after the response has begun has none: clients often end a watch as soon as they have the
// event that they wait for.
func report(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		state := request.From(ctx)
		defer func() {
			switch {
			case state.LoginFailed:
				state.Holds.Conn.Penalize(listener.FailedLoginCost)
			case state.Holds.Flow().Unauthenticated(): // it has a penalty already
			case ctx.Err() != nil && !state.RespondedInTime && time.Since(state.Began) <= resetWithin,
				state.ClientTooSlow.Load():
				state.Holds.Conn.Penalize(listener.ResetCost)
			case state.Code == http.StatusUnauthorized, state.Code == http.StatusTooManyRequests:
				state.Holds.Conn.Penalize(listener.RefusalCost)
			}
		}()
		next.ServeHTTP(w, req)
	})
}

// identify moves the request, and its connection if it has no user yet, to the flow of the authenticated user.
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

// refuseFull refuses a request for which there is no memory. A connection without a user is closed after the response.
func refuseFull(w http.ResponseWriter, req *http.Request, s runtime.NegotiatedSerializer, err error) {
	if holds := listener.From(req.Context()); holds == nil || holds.Flow().Unauthenticated() {
		request.CloseAfterwards(w.Header())
	}
	request.WriteStatus(w, req, s, request.StatusFull(err))
}
