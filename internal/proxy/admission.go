package proxy

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// Headers and bodies of ordinary size are not counted one by one: the bounds on requests bound them. So a login is
	// not refused because others have used up the bytes.
	small = 8 << 10
	// fieldOverhead is about what a header field takes in memory beside its name and its value.
	fieldOverhead = 112
	// refusalBytes is about what a request takes in memory that was refused and whose answer the client does not take.
	refusalBytes = 32 << 10
)

// admit takes what a request holds from the budget before anything is done for it, and gives it back at the end. The
// user is not known yet, so it counts as that of the connection.
func admit(next http.Handler, b *budget.Budget, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		conn := connectionFrom(req.Context())
		if conn == nil {
			next.ServeHTTP(w, req)
			return
		}
		state := stateFrom(req.Context())
		state.Client = conn.client()
		others := conn.serving.Add(1) - 1
		conn.handling.Add(1)
		defer func() {
			conn.handling.Add(-1)
			conn.closeIfShut()
		}()
		defer afterAnswer(w, req, func() {
			state.ReleaseAll()
			conn.serving.Add(-1)
			conn.used.Store(time.Now().UnixNano())
			conn.closeIfShut()
		})
		err := admitRequest(b, state, req, others)
		state.decided()
		if err != nil {
			refuseExceeded(w, req, s, state, b, err)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// afterAnswer calls end when the answer has been written, or cannot be written any more. That may be long after the
// handler returned: in HTTP/2, net/http waits for the client's window even with a small answer, and keeps the request
// in memory meanwhile. In HTTP/1 a connection has one request at a time, so the bounds on connections are enough.
func afterAnswer(w http.ResponseWriter, req *http.Request, end func()) {
	if req.ProtoMajor == 2 {
		for {
			//nolint:staticcheck // the request's context ends too early: when the handler returns
			if stream, ok := w.(http.CloseNotifier); ok {
				closed := stream.CloseNotify()
				go func() {
					<-closed
					end()
				}()
				return
			}
			wrapped, ok := w.(interface{ Unwrap() http.ResponseWriter })
			if !ok {
				break
			}
			w = wrapped.Unwrap()
		}
	}
	end()
}

func admitRequest(b *budget.Budget, state *requestState, req *http.Request, others int64) error {
	request, err := b.Acquire(state.Client, budget.Requests, 1)
	if err != nil {
		if others > 0 {
			return err
		}
		// Each connection may always have one request, so that those who fill a share do not shut out newcomers. Connections
		// are bounded.
		request = b.Force(state.Client, budget.Requests, 1)
	}
	state.Hold(request)
	if n := memoryNeeded(req); n > 0 {
		held, err := b.Acquire(state.Client, budget.Bytes, n)
		if err != nil {
			return err
		}
		state.Hold(held)
	}
	return nil
}

// memoryNeeded returns the bytes of memory that a request needs: for a large header, and for the part of its body that
// waits here until the API server takes it. What is small is not counted one by one.
func memoryNeeded(req *http.Request) int64 {
	var needed int64
	if header := memoryOfHead(req); header > small {
		needed = header
	}
	switch body := req.ContentLength; {
	case body > relay.MaxHeldBody, body < 0:
		needed += relay.MaxHeldBody + bodyWindow
	case body > small:
		needed += body
	}
	return needed
}

// memoryOfHead returns what the request takes in memory without its body. The path is there twice: as it came, and as it
// is sent on.
func memoryOfHead(req *http.Request) int64 {
	return int64(len(req.Method)+len(req.Host)+2*len(req.RequestURI)) + memoryOfHeader(req.Header)
}

// forgetHead drops what is large of a request whose handler has returned. net/http keeps the request until the client has
// taken the answer.
func forgetHead(req *http.Request) {
	if req.ProtoMajor == 2 && len(req.Method)+len(req.Host)+len(req.RequestURI) > small {
		req.Method, req.Host, req.RequestURI, req.URL = "", "", "", &url.URL{}
	}
}

func memoryOfHeader(h http.Header) int64 {
	var size int64
	for name, values := range h {
		for _, value := range values {
			size += int64(len(name) + len(value) + fieldOverhead)
		}
	}
	return size
}

// identify makes the request, and its connection if it had no user yet, that of the authenticated user. Streams are
// counted apart from here on.
func identify(next http.Handler, b *budget.Budget, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		conn, state := connectionFrom(req.Context()), stateFrom(req.Context())
		if conn == nil {
			next.ServeHTTP(w, req)
			return
		}
		if err := identifyRequest(b, conn, state, req); err != nil {
			refuseExceeded(w, req, s, state, b, err)
			return
		}
		next.ServeHTTP(w, req)
	})
}

func identifyRequest(b *budget.Budget, conn *clientConn, state *requestState, req *http.Request) error {
	name := ""
	if who, ok := apirequest.UserFrom(req.Context()); ok && !isAnonymous(who) {
		name = who.GetName()
		if err := conn.identify(name); err != nil {
			return err
		}
	}
	state.Client.User = name
	if state.LongRunning || state.Upgrade != "" {
		leaveGate(req.Context())
		// Each stream costs the API server its beginning. A user who resets them, or does not read them, gets no more of them
		// for a while.
		if name != "" && b.UserMisuses(name) {
			return &budget.Exceeded{Resource: budget.Resets, Share: budget.PerUser}
		}
		stream, err := b.Acquire(state.Client, budget.Streams, 1)
		if err != nil {
			return err
		}
		if relay.BeginsWithAll(req) {
			state.Hold(stream)
			state.AsRequest = state.Held[0]
		} else {
			state.Held[0].Release()
			state.Held[0] = stream
		}
	}
	for _, held := range state.Held {
		if err := held.Identify(name); err != nil {
			return err
		}
	}
	return nil
}

func isAnonymous(who user.Info) bool {
	return who.GetName() == user.Anonymous || slices.Contains(who.GetGroups(), user.AllUnauthenticated)
}

// refuseExceeded refuses a request for which there is no room in a share. The connection is closed too when the request has no
// user, or when the share of connections is full.
//
// In HTTP/2 the request stays in memory until the client takes the answer. When there is no room for that either, and
// the connection has other requests, the stream is reset.
func refuseExceeded(
	w http.ResponseWriter,
	req *http.Request,
	s runtime.NegotiatedSerializer,
	state *requestState,
	b *budget.Budget,
	err error,
) {
	exceeded, _ := errors.AsType[*budget.Exceeded](err)
	if state.Client.User == "" || exceeded != nil && exceeded.Resource == budget.Connections {
		request.CloseAfterwards(w.Header())
	}
	if req.ProtoMajor == 2 {
		held, full := b.Acquire(state.Client, budget.Bytes, refusalBytes)
		if conn := connectionFrom(req.Context()); full != nil && conn != nil && conn.serving.Load() > 1 {
			state.refusedSilently = true
			panic(http.ErrAbortHandler)
		}
		state.Hold(held) // or nothing: the one request of a connection always gets its answer
	}
	request.WriteStatus(w, req, s, budget.TooMany(err).Status())
}
