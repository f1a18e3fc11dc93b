// Package request is what the packages of the proxy share about one request, and how they respond to it. State goes
// with the context of the request. A response that is not the API server's is a metav1.Status, whose code says whether
// it is worth trying again: 503 when nothing was decided, 429 when the client wants too much.
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

// State is what the filters share about one request. Only the goroutine that serves the request uses it, except where a
// field says otherwise.
type State struct {
	// Header is the header of the response to the client. It is kept here because ReverseProxy does not give it to
	// ModifyResponse.
	Header http.Header
	// Began is when the request arrived, Sent when it was forwarded, Responded when the API server's response began,
	// and ResponseBegan when the response to the client did.
	Began, Sent, Responded, ResponseBegan time.Time
	// Code is the status code of the response to the client, zero before it begins.
	Code int

	// Verb is what the request does, empty before its path has been read.
	Verb string

	// Upgrade is the protocol to which the client wants to switch, in lower case. It is empty for an ordinary request.
	Upgrade string
	// LongRunning is true for requests that may stay open without a limit, such as watches and logs.
	LongRunning bool
	// CloseAfterwards is true when the client's connection is closed after the response.
	CloseAfterwards bool
	// End ends the request with an error. It is nil for requests that are no streams.
	End func(error)
	// Switched is called with the client's connection when the protocol is switched. It is nil for requests that are no
	// streams.
	Switched func(net.Conn)
	// RespondedInTime is true when the client was still connected when the API server's response began.
	RespondedInTime bool

	// Holds is what the request holds, and its flow.
	Holds *listener.Request

	// Original is the user who made the request, before nested impersonation.
	Original user.Info
	// Nested is true when the client asked to impersonate another user.
	Nested bool
	// UpstreamToken is the token of our own with which the request was sent.
	UpstreamToken string
	// Unavailable says why the API server could not be asked who the user is, and is nil when it could.
	Unavailable error
	// ReleaseSeats releases the seats of the request, if it has any. It may be called more than once.
	ReleaseSeats func()
	// Login has the callbacks of a TokenCredentialRequest with a seat, nil for other requests.
	Login *Login
	// LoginFailed is true when there is no credential in the response to a TokenCredentialRequest.
	LoginFailed bool

	// Initial is true while a watch begins with all objects that there are. The goroutine of the transport sets it.
	Initial atomic.Bool
	// BeginsLong is called when these objects are large.
	BeginsLong func()
	// ResponseBody is the body of the API server's response, nil for a stream or a short response. ResponseFits is true
	// for a short response: the API server can finish it, however slow the client is.
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

// Login is a TokenCredentialRequest.
type Login struct {
	Group string // its API group
	// Sent is called when the API server's response begins, or there will be none.
	Sent func()
	// Responded is called with the API server's response before it is sent to the client.
	Responded func(*http.Response)
}

// ResponseBody is the body of an API server's response that can be buffered for a slow client.
type ResponseBody interface {
	// ReadAhead starts to buffer the rest of it.
	ReadAhead()
	// Whole is true when the API server has sent all of it.
	Whole() bool
}

// Body is a client's body that must arrive in time.
type Body interface {
	// Unbind ends the limit.
	Unbind()
	// Late is true when it did not arrive in time.
	Late() bool
}

// IsStream is true for requests that may last for long.
func (s *State) IsStream() bool { return s.LongRunning || s.Upgrade != "" }

// Flow returns the flow of the request: the user who made it, before nested impersonation, or else the client's address
// with the connection as sub-flow. An anonymous user is no user here. A nil State has no flow.
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

// IsAnonymous is true for a user who has not authenticated.
func IsAnonymous(who user.Info) bool {
	return who.GetName() == user.Anonymous || slices.Contains(who.GetGroups(), user.AllUnauthenticated)
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
