package request

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
)

// State is what the filters tell each other about one request. Only the goroutine that serves the request uses it,
// except where a field says otherwise.
type State struct {
	// Header is the header of the answer to the client. It is kept here because ReverseProxy does not give it to
	// ModifyResponse.
	Header http.Header
	// Sent is when the request was sent on, and Answered when the API server's answer began.
	Sent, Answered time.Time

	// Upgrade is the protocol to which the client wants to switch, in lower case. It is empty for an ordinary request.
	Upgrade string
	// LongRunning is true for requests that may stay open without a limit, such as watches and logs.
	LongRunning bool
	// CloseAfterwards is true when the client's connection is closed after the answer.
	CloseAfterwards bool
	// End ends the request with an error. It is nil for requests that are no streams.
	End func(error)
	// AnsweredInTime is true when the client was still waiting when the API server's answer began.
	AnsweredInTime bool

	// Connection is the client's, for comparisons only. It is nil for a request that came over none.
	Connection any
	// Client is to whom the request counts in the budget: at first as the connection, and then as the authenticated user.
	Client Client
	// Held is what the request holds. The first is the request itself.
	Held []Holding
	// AsRequest is the first of them for a watch that begins with all objects: it counts as a request, too, until its
	// answer begins. It is nil for other requests.
	AsRequest Holding

	// Original is the user who made the request, before nested impersonation.
	Original user.Info
	// Nested is true when the client asked to impersonate another user.
	Nested bool
	// ClientToken is the token by which the request was authenticated, if it was by a token.
	ClientToken string
	// UpstreamToken is the token of our own with which the request was sent. It is empty when the client's was used.
	UpstreamToken string
	// Unavailable says why the API server could not be asked who the user is, and is nil when it could.
	Unavailable error
	// WriteTurn is the turn of a write among those of its user, nil for reads, streams and logins.
	WriteTurn interface{ Done() }
	// Login is what is to be done about a TokenCredentialRequest that has a turn, nil for other requests.
	Login *Login
	// Review is the access review that goes on while the request is already sent, nil when there is none.
	Review Review

	// Initial is true while a watch begins with all objects that there are. The goroutine of the transport sets it.
	Initial atomic.Bool
	// LongExpected is true when the answer will probably be long, and LengthExpected how long at least, if that is
	// known.
	LongExpected   bool
	LengthExpected int64
	// Reserved is what was taken from the budget for it before the request was sent.
	Reserved int64
	// Answer is the body of the API server's answer, nil when it is a stream or short. AnswerFits is true when it is short:
	// the API server is done with it, however slowly the client reads.
	Answer     Answer
	AnswerFits bool
	// AnswerGood is true when the API server's status is 200, and AnswerLong when its header shows that the answer is long.
	AnswerGood, AnswerLong bool
	// ContentLength is what that header says, -1 when it says nothing.
	ContentLength int64

	// Body is the client's body, nil when there is none.
	Body Body
	// BodyFailed is true when the client's body could not be read to its end. The goroutine of the transport sets it.
	BodyFailed atomic.Bool
}

// Client is a client as the budget knows it.
type Client struct {
	// Address is the IP address of the client, without a port.
	Address string
	// User is the name of the authenticated user, and empty when there is none.
	User string
}

// Holding is something that a request holds.
type Holding interface {
	// Identify counts it for the user.
	Identify(user string) error
	Release()
}

// Login is a TokenCredentialRequest.
type Login struct {
	Group string // its API group
	// Sent is called when the API server's answer begins, or there will be none.
	Sent func()
	// Answered is called with the API server's answer before it goes to the client.
	Answered func(*http.Response)
}

// Review is an access review that the API server has been asked for.
type Review interface {
	// Refusal waits for the answer. It returns the error for the client, and nil when the request is allowed.
	Refusal(ctx context.Context) error
}

// Answer is the body of an API server's answer that is taken into memory when the client does not keep up.
type Answer interface {
	// ReadAhead begins to take the rest of it into memory.
	ReadAhead()
	// Whole is true when the API server is done with it, and Complete when it also sent all of it.
	Whole() bool
	Complete() bool
	// Length is how much the API server has sent so far.
	Length() int
}

// Body is a client's body that has to come in time.
type Body interface {
	// Unbind ends the limit: it is here.
	Unbind()
	// Late is true when it did not come in time.
	Late() bool
}

// Hold keeps h until the end of the request.
func (s *State) Hold(h Holding) { s.Held = append(s.Held, h) }

// ReleaseAll gives back all that the request holds.
func (s *State) ReleaseAll() {
	for _, h := range s.Held {
		h.Release()
	}
}

type stateKey struct{}

// With returns a context in which From finds s.
func With(ctx context.Context, s *State) context.Context {
	return context.WithValue(ctx, stateKey{}, s)
}

// From returns the state of the request. It returns nil for a request that did not come through the chain.
func From(ctx context.Context) *State {
	s, _ := ctx.Value(stateKey{}).(*State)
	return s
}
