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

// handler builds the chain of filters. The last line adds the outermost filter: a request passes the filters from the
// bottom to the top.
func handler(c *Server, loginGroup string) http.Handler {
	s := c.serializer
	h, unknown := c.forward, identity.Unauthenticated(s)
	// Fair queuing before the API server. Reads the body first.
	h = relay.AcquireSeats(h, c.FlowControl, relay.NewLongResponses(c.Clock), s)
	// Fair queuing of logins. 429 for a client with too many at once.
	h = limitLogins(h, c.FlowControl, c.Clock, loginGroup, s)
	// 403 by SubjectAccessReview.
	h = identity.Authorize(h, c.access, s)
	// Refuses Impersonate- headers that nested impersonation did not consume.
	h = refuseLeftovers(h, s)
	// Nested impersonation: consumes Impersonate-* and replaces the user in the context.
	h = identity.Impersonate(h, c.access, s, c.Clock, c.AllowTTL)
	// Records the original user for the API server's audit log.
	h = identity.WithOriginalUser(h)
	if c.Used != nil {
		// Records that the client uses the proxy, and the server name.
		h = noteUse(h, c.Used, loginGroup)
	}
	// Charges the user's flow. 429 or 503 when it has no memory left.
	h = identify(h, s)
	if c.Audit != nil {
		// Writes the optional audit log.
		h, unknown = c.Audit.write(h, s), c.Audit.writeRefused(unknown)
	}
	// Authentication. 401; consumes Authorization and X-Remote-*.
	h = filters.WithAuthentication(keepOpen(h), c.authenticator, unknown, nil, nil)
	if c.TrustBundle != nil {
		// The trust bundle endpoint, open to all clients.
		h = trustBundleEndpoint(h, c.TrustBundle, c.Used, s)
	}
	if c.LoginInfo != nil {
		// The login information, open to all clients.
		h = loginInfoEndpoint(h, c.LoginInfo, c.Used, s)
	}
	// Lets the filters above send warnings.
	h = filters.WithWarningRecorder(h)
	// Ends streams when the proxy shuts down.
	h = c.drain.hold(h, s)
	// Parses the path. Refuses ambiguous paths.
	h = readRequest(h, request.NewInfoResolver(), s)
	// Refuses methods and upgrades; removes spoofed headers.
	h = refuseHostile(h, s)
	// Limits the wait for a body.
	h = boundBody(h, c.BodyTimeout)
	// Ends responses to slow clients.
	h = boundResponse(h, c.FlowControl, c.WriteTimeout)
	if c.Audit != nil {
		// Gives the request its Audit-ID.
		h = c.Audit.begin(h)
	}
	// Counts requests, so that shutdown can wait for them.
	h = c.drain.track(h)
	// Responds with 500 to a panic.
	h = recoverPanics(h, s)
	// Penalizes wasted requests: reset or refused, also by a panic.
	h = report(h)
	// Metrics.
	h = c.Metrics.measure(h)
	// State of the request, security headers.
	h = setUp(h)
	// Memory for the request; fair queuing of unauthenticated clients. 429 or 503 before any work is done.
	return c.port.Handler(h, c.refuseEarly)
}

// refuseEarly refuses a request for which there is no memory.
func (s *Server) refuseEarly(w http.ResponseWriter, req *http.Request, err error) {
	setUp(s.Metrics.measure(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		refuseFull(w, req, s.serializer, err)
	}))).ServeHTTP(w, req)
}

// keepOpen keeps the connection of an anonymous client. WithAuthentication would close it after each HTTP/2 request,
// and a new connection would have no penalty.
func keepOpen(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !request.From(req.Context()).CloseAfterwards {
			delete(w.Header(), "Connection")
		}
		next.ServeHTTP(w, req)
	})
}

// setUp adds the state to the request and the security headers to the response.
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

// growStack grows the goroutine's stack once for all filters, while there is little to copy. Otherwise the stack of
// every request grows in steps, with all filters on it: 7 % of the CPU of a get.
//
//go:noinline
func growStack(i int) byte {
	var stack [9 << 10]byte
	return stack[i%len(stack)]
}

// recoverPanics responds with 500 when a handler panics, or breaks off a response that has begun. Two panics are not
// bugs: http.ErrAbortHandler, with which a handler ends a broken response, and ReviewPanic, which says that a nested
// impersonation could not be reviewed.
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
					"cannot reach the API server to authorize the impersonation"))
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
