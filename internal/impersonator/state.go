package impersonator

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
)

// requestState is what the filters tell each other about one request. It belongs to the goroutine of that request.
type requestState struct {
	// header is the client's answer header, kept here because ReverseProxy does not show it to ModifyResponse.
	header http.Header
	// upgrade is the protocol the client asks to switch to, lower case; empty for an ordinary request.
	upgrade string
	// last is true when the client's connection ends with the answer.
	last bool
	// longRunning is true for requests that may stay open as long as both sides like.
	longRunning bool
	// end ends a stream; set for streams only.
	end func(error)
	// unavailable is set when authentication could not be decided as the API server did not answer.
	unavailable error
	// inTime is true when the API server's answer began before the client took its request back.
	inTime bool
	// original is the user who made the request, before nested impersonation.
	original user.Info
	// body is set when the client's body could not be read to its end. The transport reads it.
	body atomic.Pointer[clientBodyError]
	// awaited is the client's body, nil when there is none.
	awaited *boundedBody
	// nested is true when the client asked to impersonate.
	nested bool
	// token is the upstream token the request was sent with; empty when it was sent with the client's.
	token string
	// bearer is the client's token, when that is what the request was authenticated by.
	bearer string
	// review is set when the request is sent while its access review is under way.
	review *underReview

	// verb, answer and the times are for metrics: when the request came, was sent on, and began to be answered upstream.
	verb                  string
	answer                answerWriter
	began, sent, answered time.Time
}

type stateKey struct{}

func withState(ctx context.Context, s *requestState) context.Context {
	return context.WithValue(ctx, stateKey{}, s)
}

// stateFrom returns the state of the request, nil for a request that did not come through the chain.
func stateFrom(ctx context.Context) *requestState {
	s, _ := ctx.Value(stateKey{}).(*requestState)
	return s
}
