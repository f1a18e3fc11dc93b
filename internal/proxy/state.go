package proxy

import (
	"context"
	"net/http"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/fairqueue"
)

// requestState is what the filters tell each other about one request. Only the goroutine that serves the request uses
// it, except where a field says otherwise.
type requestState struct {
	// header is the header of the answer to the client. It is kept here because ReverseProxy does not give it to
	// ModifyResponse.
	header http.Header
	// measured is what the metrics need, and no filter decides by.
	measured measurement

	// upgrade is the protocol to which the client wants to switch, in lower case. It is empty for an ordinary request.
	upgrade string
	// longRunning is true for requests that may stay open without a limit, such as watches and logs.
	longRunning bool
	// closeAfterwards is true when the client's connection is closed after the answer.
	closeAfterwards bool
	// end ends the request with an error. It is nil for requests that are no streams.
	end func(error)
	// answeredInTime is true when the client was still waiting when the API server's answer began.
	answeredInTime bool

	// leftUnread is true when the answer was ended because the client did not read it. A timer sets it.
	leftUnread atomic.Bool
	// refusedSilently is true when the stream was reset instead of refused with an answer.
	refusedSilently bool
	// brokenOff is true when the answer breaks off as soon as it is in the audit log.
	brokenOff bool

	// arriving counts the request as long as nothing was decided about it; nil afterwards.
	arriving *arrivals

	// client is to whom the request counts in the budget: at first as the connection, and then as the authenticated user.
	client budget.Client
	// held is what the request holds. The first is the request itself.
	held []*budget.Holding
	// asRequest is the first of them for a watch that begins with all objects: it counts as a request, too, until its
	// answer begins.
	asRequest *budget.Holding

	// original is the user who made the request, before nested impersonation.
	original user.Info
	// nested is true when the client asked to impersonate another user.
	nested bool
	// clientToken is the token by which the request was authenticated, if it was by a token.
	clientToken string
	// upstreamToken is the token of our own with which the request was sent. It is empty when the client's was used.
	upstreamToken string
	// unavailable says why the API server could not be asked who the user is, and is nil when it could.
	unavailable error
	// writeTurn is the turn of a write among those of its user, nil for reads, streams and logins.
	writeTurn *fairqueue.Ticket
	// login is the turn of a TokenCredentialRequest, nil for other requests.
	login *turn
	// loginGroup is the API group of that TokenCredentialRequest.
	loginGroup string
	// loginEnded is called when the API server has answered it, with whether there is a credential in the answer.
	loginEnded func(good bool)
	// loginFailed is true when there is none.
	loginFailed bool
	// review is the access review that goes on while the request is already sent, nil when there is none.
	review *pendingReview

	// initial is true while a watch begins with all objects that there are. The goroutine of the transport sets it.
	initial atomic.Bool
	// longExpected is true when the answer will probably be long, and lengthExpected how long at least, if that is
	// known.
	longExpected   bool
	lengthExpected int64
	// reserved is what was taken from the budget for it before the request was sent.
	reserved int64
	// answer is the body of the API server's answer, nil when it is a stream or short. answerFits is true when it is short:
	// the API server is done with it, however slowly the client reads.
	answer     *aheadBody
	answerFits bool
	// answerGood is true when the API server's status is 200, and answerLong when its header shows that the answer is long.
	answerGood, answerLong bool
	// contentLength is what that header says, -1 when it says nothing.
	contentLength int64

	// body is the client's body, nil when there is none.
	body *boundedBody
	// bodyError says why the client's body could not be read to its end. The goroutine of the transport sets it.
	bodyError atomic.Pointer[clientBodyError]
}

// hold keeps h until the end of the request.
func (s *requestState) hold(h *budget.Holding) { s.held = append(s.held, h) }

func (s *requestState) releaseAll() {
	for _, h := range s.held {
		h.Release()
	}
}

type stateKey struct{}

func withState(ctx context.Context, s *requestState) context.Context {
	return context.WithValue(ctx, stateKey{}, s)
}

// stateFrom returns the state of the request. It returns nil for a request that did not come through the chain.
func stateFrom(ctx context.Context) *requestState {
	s, _ := ctx.Value(stateKey{}).(*requestState)
	return s
}
