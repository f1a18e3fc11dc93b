package listener

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

const (
	// MaxHeldBody is how much of a body is buffered before the request is forwarded. The client may send as much again
	// before it is read.
	MaxHeldBody = 128 << 10
	// unauthenticatedBody is how much of an unauthenticated client's body counts with the request.
	unauthenticatedBody = 32 << 10
	// fieldOverhead is about the memory of a header field in addition to its name and value.
	fieldOverhead = 112
	// preAuthTimeout is how long an unauthenticated client occupies a pre-authentication seat at most.
	preAuthTimeout = 20 * time.Millisecond
)

// Request is what a request holds until its response was sent or has failed.
type Request struct {
	Conn *Conn
	flow flowcontrol.Flow
	head int64

	preAuth *preAuth            // nil for requests over connections of users
	first   *flowcontrol.Permit // of the request itself; nil when its connection includes it

	mu   sync.Mutex
	over bool
	held []*flowcontrol.Permit
}

type requestKey struct{}

// From returns the Request of ctx, or nil for a request without a connection of a Port.
func From(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Handler is the outermost filter. It queues requests of unauthenticated clients fairly, and acquires the memory of
// each request. Without memory, it calls refuse for a user's request, and resets an unauthenticated client's.
func (p *Port) Handler(next http.Handler, refuse func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		conn := p.Of(req)
		if conn == nil {
			panic(http.ErrAbortHandler) // it is already closed
		}
		r := &Request{Conn: conn, flow: conn.Flow(), head: SizeOfHead(req)}
		conn.begin(r, req)
		defer afterResponse(w, req, r.end)
		if err := r.enter(req); err != nil {
			if r.flow.Unauthenticated() || req.Context().Err() != nil {
				panic(http.ErrAbortHandler)
			}
			refuse(w, req, err)
			return
		}
		next.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), requestKey{}, r)))
	})
}

// begin is called when a request is parsed: all input before it is processed.
func (c *Conn) begin(r *Request, req *http.Request) {
	c.Used(c.input.Load())
	c.endPreAuth()
	c.serving.Add(1)
	if c.unauthenticated() {
		c.Penalize(ResetCost)
	}
	if r.head > SmallHead && req.ProtoMajor == 2 { // an HTTP/1 client has sent all of it
		c.Penalize(timeOf(r.head, headCost))
	}
}

// enter acquires memory for the request and, for an unauthenticated client, a pre-authentication seat.
func (r *Request) enter(req *http.Request) error {
	c := r.Conn
	if !c.asked.Swap(true) {
		take := func() error { return c.base.Grow(flowcontrol.ConnectionBytes, 0) }
		if err := c.port.withEviction(c, evictionTimeout, take); err != nil {
			return err
		}
	}
	needed := bodyHeld(req)
	if r.flow.Unauthenticated() { // its body also counts as input, and is not read before authentication
		needed = min(needed, unauthenticatedBody)
	}
	needed += r.head
	if c.serving.Load() > 1 {
		needed += flowcontrol.RequestBytes
	} else {
		// Each connection may always have one short request, so that a flow at its limit does not exclude new clients.
		needed -= SmallHead
	}
	if needed > 0 {
		var err error
		if r.first, err = c.hold(r.flow, flowcontrol.Cost{Resource: flowcontrol.Request, Bytes: needed}); err != nil {
			return err
		}
	}
	if !r.flow.Unauthenticated() {
		return nil
	}
	var err error
	r.preAuth, err = c.await(req.Context())
	return err
}

// PreAuthDone releases the pre-authentication seat of an unauthenticated client's request: its user is known, or a
// review is needed. A nil Request is valid.
func (r *Request) PreAuthDone() {
	if r != nil {
		r.preAuth.end()
	}
}

// Flow returns the flow of the request.
func (r *Request) Flow() flowcontrol.Flow { return r.flow }

// Identified moves the request to the flow of its user, "" for an anonymous one. It moves the connection too, if that
// has no user. A stream counts as one from here on. The error is a *flowcontrol.Full.
func (r *Request) Identified(user string, stream bool) error {
	r.PreAuthDone()
	flow := flowcontrol.Flow{Address: r.Conn.address, User: user}
	if user != "" {
		if err := r.Conn.Identified(user); err != nil {
			return err
		}
	}
	r.flow = flow
	if !stream {
		return r.first.Transfer(flow)
	}
	permit, err := r.Conn.hold(
		flow,
		flowcontrol.Cost{Resource: flowcontrol.Stream, Bytes: flowcontrol.StreamBytes + r.head},
	)
	if err != nil {
		return err
	}
	r.Conn.Release(r.first)
	r.first = permit
	return nil
}

// Hold acquires memory until the end of the request.
func (r *Request) Hold(resource flowcontrol.Resource, bytes int64) error {
	permit, err := r.Conn.hold(r.flow, flowcontrol.Cost{Resource: resource, Bytes: bytes})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		r.Conn.Release(permit)
		return nil
	}
	r.held = append(r.held, permit)
	return nil
}

// Others is true when the connection has other open requests.
func (r *Request) Others() bool { return r.Conn.serving.Load() > 1 }

func (r *Request) end() {
	r.Conn.serving.Add(-1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.preAuth.end()
	r.Conn.Release(r.first)
	for _, permit := range r.held {
		r.Conn.Release(permit)
	}
}

// bodyHeld returns the maximum memory of the request body until the API server has it.
func bodyHeld(req *http.Request) int64 {
	if req.ContentLength < 0 || req.ContentLength > MaxHeldBody {
		return 2 * MaxHeldBody
	}
	return req.ContentLength
}

// SizeOfHead returns the memory of a request without its body, in bytes. The path counts twice: as received, and as
// forwarded.
func SizeOfHead(req *http.Request) int64 {
	size := int64(len(req.Method) + len(req.Host) + 2*len(req.RequestURI))
	for name, values := range req.Header {
		for _, value := range values {
			size += int64(len(name) + len(value) + fieldOverhead)
		}
	}
	return size
}

// afterResponse calls end when the response has been sent or has failed. That may be long after the handler returned:
// in HTTP/2, net/http waits for the client's window even with a small response, and keeps the request in memory
// meanwhile. An HTTP/1 connection has one request at a time, so the limits of connections suffice.
func afterResponse(w http.ResponseWriter, req *http.Request, end func()) {
	//nolint:staticcheck // the request's context ends too early: when the handler returns
	if stream, ok := w.(http.CloseNotifier); ok && req.ProtoMajor == 2 && req.Context().Err() == nil {
		closed := stream.CloseNotify()
		go func() {
			<-closed
			end()
		}()
		return
	}
	end()
}
