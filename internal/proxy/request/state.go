// Package request has the state of one request that the proxy's packages share, and the proxy's own responses. State is
// in the context of the request. The proxy's own responses are a metav1.Status: 503 when nothing was decided, 429 when
// the client exceeds its limits. Both can be retried.
package request

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
)

// State is the state of one request. Only the goroutine that serves the request uses it, except where a field says
// otherwise.
type State struct {
	// Header is the header of the response to the client. ReverseProxy does not pass it to ModifyResponse.
	Header http.Header
	// Began is when the request arrived, Sent when it was forwarded, Responded when the API server's response began,
	// and ResponseBegan when the response to the client began.
	Began, Sent, Responded, ResponseBegan time.Time
	// Code is the status code of the response to the client, zero before it begins.
	Code int

	// Verb is the Kubernetes verb. It is empty before the path is parsed.
	Verb string

	// Upgrade is the protocol to which the client wants to upgrade, in lower case. It is empty for an ordinary request.
	Upgrade string
	// LongRunning is true for requests without a time limit, such as watches and logs.
	LongRunning bool
	// CloseAfterwards is true when the client's connection is closed after the response.
	CloseAfterwards bool
	// End ends the request with an error. It is nil for requests that are not streams.
	End func(error)
	// Switched is called with the client's connection after a protocol upgrade. It is nil for requests that are not
	// streams.
	Switched func(net.Conn)
	// RespondedInTime is true when the client was still connected when the API server's response began.
	RespondedInTime bool

	// Holds tracks the resources that the request holds, and its flow.
	Holds *listener.Request

	// Original is the user who made the request, before nested impersonation.
	Original user.Info
	// Nested is true when the client asked to impersonate another user.
	Nested bool
	// UpstreamToken is the proxy's own token with which the request was sent.
	UpstreamToken string
	// Unavailable is why the user could not be authenticated, or nil.
	Unavailable error
	// ReleaseSeats releases the seats of the request, if it has any. It may be called more than once.
	ReleaseSeats func()
	// Login has the callbacks of a TokenCredentialRequest that has a seat. It is nil for other requests.
	Login *Login
	// LoginFailed is true when the response to a TokenCredentialRequest has no credential.
	LoginFailed bool

	// Initial is true while a watch sends the existing objects. The goroutine of the transport sets it.
	Initial atomic.Bool
	// BeginsLong is called when the existing objects are large.
	BeginsLong func()
	// ResponseBody is the body of the API server's response, nil for a stream or a short response. ResponseFits is true
	// for a short response: the API server can finish it even if the client is slow.
	ResponseBody ResponseBody
	ResponseFits bool
	// ResponseOK is true when the API server's status is 200, and ResponseLong when its header announces a long
	// response.
	ResponseOK, ResponseLong bool
	// ClientTooSlow is true when the response was ended because of a slow client. A timer sets it.
	ClientTooSlow atomic.Bool
	// Body is the client's body, nil when there is none.
	Body Body
	// BodyFailed is true when the client's body could not be read to its end. The goroutine of the transport sets it.
	// The error that the transport returns then may look like that of a broken connection to the API server.
	BodyFailed atomic.Bool
}

// Login has the callbacks of a TokenCredentialRequest.
type Login struct {
	Group string // its API group
	// Sent is called when the API server's response begins, or when there will be none.
	Sent func()
	// Responded is called with the API server's response before it is sent to the client.
	Responded func(*http.Response)
}

// ResponseBody is the body of an API server's response that can be buffered for a slow client.
type ResponseBody interface {
	// ReadAhead starts to buffer the rest of the body.
	ReadAhead()
	// Whole is true when the API server has sent the whole body.
	Whole() bool
}

// Body is a client's body with a time limit.
type Body interface {
	// Unbind removes the limit.
	Unbind()
	// Late is true when the body exceeded the limit.
	Late() bool
}

// IsStream is true for long-running requests and protocol upgrades.
func (s *State) IsStream() bool { return s.LongRunning || s.Upgrade != "" }

// Flow returns the flow of the request: the user who made it, before nested impersonation. For unauthenticated and
// anonymous clients, it is the client's address, with the connection as sub-flow. A nil State has no flow.
func (s *State) Flow() (who flowcontrol.Flow, subFlow any) {
	if s == nil || s.Holds == nil {
		return who, nil
	}
	who.Address = s.Holds.Flow().Address
	if s.Original != nil && !IsAnonymous(s.Original) {
		who.User = s.Original.GetName()
		return who, nil
	}
	return who, s.Holds.Conn
}

// IsAnonymous is true for an unauthenticated user.
func IsAnonymous(who user.Info) bool {
	return who.GetName() == user.Anonymous || slices.Contains(who.GetGroups(), user.AllUnauthenticated)
}

type stateKey struct{}

// With returns a context in which From finds s.
func With(ctx context.Context, s *State) context.Context {
	return context.WithValue(ctx, stateKey{}, s)
}

// From returns the state of the request, or nil outside of the handler chain.
func From(ctx context.Context) *State {
	s, _ := ctx.Value(stateKey{}).(*State)
	return s
}
