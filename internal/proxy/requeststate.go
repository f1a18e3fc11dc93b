package proxy

import (
	"context"
	"sync/atomic"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// requestState is what is known about one request, with what only the filters of this package need.
type requestState struct {
	request.State
	// measured is what the metrics need, and no filter decides by.
	measured measurement
	// leftUnread is true when the answer was ended because the client did not read it. A timer sets it.
	leftUnread atomic.Bool
	// brokenOff is true when the answer breaks off as soon as it is in the audit log.
	brokenOff bool
	// loginFailed is true when there is no credential in the answer to a TokenCredentialRequest.
	loginFailed bool
}

type requestStateKey struct{}

func withState(ctx context.Context, s *requestState) context.Context {
	return context.WithValue(request.With(ctx, &s.State), requestStateKey{}, s)
}

// stateFrom returns the state of the request. It returns nil for a request that did not come through the chain.
func stateFrom(ctx context.Context) *requestState {
	s, _ := ctx.Value(requestStateKey{}).(*requestState)
	return s
}
