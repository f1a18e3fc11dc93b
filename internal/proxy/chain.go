package proxy

import (
	"fmt"
	"net/http"
	"runtime/debug"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// handler puts the filters together. The last line adds the outermost filter: a request goes through them from the
// bottom to the top.
func handler(c *Server, loginGroup string) http.Handler {
	s := c.serializer
	h, unknown := c.forward, identity.Unauthenticated(s)
	// Fair queuing before the API server. Reads the body before.
	h = relay.AcquireSeats(h, c.FlowControl, relay.NewLongResponses(c.Clock), s)
	// Fair queuing of logins. 429 for a client with too many at once.
	h = limitLogins(h, c.FlowControl, c.Clock, loginGroup, s)
	// May that user do this? 403 by SubjectAccessReview.
	h = identity.Authorize(h, c.access, s)
	// An Impersonate- header that nested impersonation did not consume is refused.
	h = refuseLeftovers(h, s)
	// Nested impersonation: consumes Impersonate-*, puts another user into the context.
	h = identity.Impersonate(h, c.access, s, c.Clock, c.AllowTTL)
	// Who asked? For the API server's audit log.
	h = identity.WithOriginalUser(h)
	if c.Used != nil {
		// Do clients use what is published?
		h = noteUse(h, c.Used, loginGroup)
	}
	// Whose share is it? 429 or 503 when that user's is full.
	h = identify(h, s)
	if c.Audit != nil {
		// Who did what? With the optional audit log only.
		h, unknown = c.Audit.write(h, s), c.Audit.writeRefused(unknown)
	}
	// Who is it? 401; consumes Authorization and X-Remote-*.
	h = filters.WithAuthentication(keepOpen(h), c.authenticator, unknown, nil, nil)
	if c.TrustBundle != nil {
		// The trust bundle endpoint, open to all clients.
		h = trustBundleEndpoint(h, c.TrustBundle, c.Used, s)
	}
	if c.LoginInfo != nil {
		// How people log in, open to all clients.
		h = loginInfoEndpoint(h, c.LoginInfo, c.Used, s)
	}
	// Lets the filters above warn the client.
	h = filters.WithWarningRecorder(h)
	// Streams end when the proxy shuts down.
	h = c.drain.hold(h, s)
	// What is it about? Refuses paths with two readings.
	h = readRequest(h, request.NewInfoResolver(), s)
	// Refuses methods and upgrades, removes similar headers.
	h = refuseHostile(h, s)
	// Ends the wait for a body that does not come.
	h = boundBody(h, c.BodyTimeout)
	// Ends responses to slow clients.
	h = boundResponse(h, c.FlowControl, c.WriteTimeout)
	if c.Audit != nil {
		// A name for the request in both audit logs.
		h = c.Audit.begin(h)
	}
	// Counts requests, so that shutdown can wait for them.
	h = c.drain.track(h)
	// A bug costs one request: 500.
	h = recoverPanics(h, s)
	// Charges a penalty for wasted requests: reset or refused, also by a panic.
	h = report(h)
	// How many, how long?
	h = c.Metrics.measure(h)
	// State of the request, security headers.
	h = setUp(h)
	// Memory for the request; fair queuing of unauthenticated clients. 429 or 503 before anything is done.
	return c.port.Handler(h, c.refuseEarly)
}

// refuseEarly refuses a request for which there is no memory.
func (s *Server) refuseEarly(w http.ResponseWriter, req *http.Request, err error) {
	setUp(s.Metrics.measure(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		refuseFull(w, req, s.serializer, err)
	}))).ServeHTTP(w, req)
}

// keepOpen keeps the connection of an anonymous client. WithAuthentication would close it after each request over
// HTTP/2, and a new connection would have no penalty.
func keepOpen(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !request.From(req.Context()).CloseAfterwards {
			delete(w.Header(), "Connection")
		}
		next.ServeHTTP(w, req)
	})
}

// setUp gives the request its state and the response its security headers.
func setUp(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		header := w.Header()
		growStack(len(header))
		for name, values := range request.SecurityHeaders {
			header[name] = values
		}
		state := &request.State{Header: header, Holds: listener.From(req.Context())}
		next.ServeHTTP(w, req.WithContext(request.With(req.Context(), state)))
	})
}

// growStack makes room on the goroutine's stack for all filters at once, while there is little to copy. Otherwise the
// stack of every request grows in steps, and all filters on it are copied: 7 % of the CPU of a get.
//
//go:noinline
func growStack(i int) byte {
	var room [9 << 10]byte
	return room[i%len(room)]
}

// recoverPanics responds with 500 when a handler panics, or breaks off a response that has begun. Two panics are no
// bugs and are treated apart: http.ErrAbortHandler, by which a handler ends a broken response, and ReviewPanic, which
// says that the API server gave no response about a nested impersonation.
func recoverPanics(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer func() {
			p := recover()
			failed, ok := p.(identity.ReviewPanic)
			switch {
			case p == nil:
			case p == http.ErrAbortHandler: //nolint:errorlint // it is the very value
				panic(p)
			case ok:
				request.WriteStatus(w, req, s, request.StatusUndecided(req.Context(), failed.Err,
					"the API server cannot be reached to authorize the impersonation"))
			default:
				klog.FromContext(req.Context()).Error(fmt.Errorf("panic: %v", p), "Recovered from panic",
					"method", req.Method, "path", req.URL.Path, "stack", string(debug.Stack()))
				if request.From(req.Context()).Code != 0 {
					panic(http.ErrAbortHandler) // otherwise the response would seem complete
				}
				request.WriteStatus(w, req, s, apierrors.NewInternalError(fmt.Errorf("the request could not be handled")))
			}
		}()
		next.ServeHTTP(w, req)
	})
}
