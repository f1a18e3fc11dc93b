package edge

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
)

const (
	// MaxHeldBody is how much of a body is held here at most before it is sent on. The client may send as much beside
	// that before it is read.
	MaxHeldBody = 128 << 10
	// strangersBody is how much of a stranger's body counts with the request.
	strangersBody = 32 << 10
	// fieldOverhead is about what a field of a head takes in memory beside its name and its value.
	fieldOverhead = 112
	// lookLasts is for how long a stranger keeps others from being looked at.
	lookLasts = 20 * time.Millisecond
)

// Request is what a request holds until its answer has been taken by the client, or cannot be any more.
type Request struct {
	Conn  *Conn
	owner admission.Owner
	head  int64

	look  *look            // nil for requests over connections of users
	first *admission.Place // what the request itself takes; nil when that is in what its connection takes

	mu   sync.Mutex
	over bool
	held []*admission.Place
}

type requestKey struct{}

// From returns what the request of ctx holds, nil for a request that came over no connection of an edge.
func From(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Handler is the outermost filter. It lets requests of strangers take turns, and takes the memory of each request. A
// request for which there is none is given to refuse when a user made it; a stranger's is reset.
func (e *Edge) Handler(next http.Handler, refuse func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		conn := e.Of(req)
		if conn == nil {
			panic(http.ErrAbortHandler) // it is closed already
		}
		r := &Request{Conn: conn, owner: conn.Owner(), head: SizeOfHead(req)}
		conn.begin(r, req)
		defer afterAnswer(w, req, r.end)
		if err := r.enter(req); err != nil {
			if r.owner.IsStranger() || req.Context().Err() != nil {
				panic(http.ErrAbortHandler)
			}
			refuse(w, req, err)
			return
		}
		next.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), requestKey{}, r)))
	})
}

// begin is called when a request has come: all that was sent before was of use.
func (c *Conn) begin(r *Request, req *http.Request) {
	c.Used(c.input.Load())
	c.endTurn()
	c.serving.Add(1)
	if c.isStranger() {
		c.Owe(ResetCost)
	}
	if r.head > SmallHead && req.ProtoMajor == 2 { // in HTTP/1 the client has sent all of it
		c.Owe(timeOf(r.head, headCost))
	}
}

// enter takes memory for the request, and waits for the turn of a stranger's.
func (r *Request) enter(req *http.Request) error {
	c := r.Conn
	if !c.asked.Swap(true) {
		take := func() error { return c.base.Grow(admission.ConnectionBytes, 0) }
		if err := c.edge.makeRoom(c, roomPatience, take); err != nil {
			return err
		}
	}
	needed := bodyHeld(req)
	if r.owner.IsStranger() { // what comes of it counts as input as well, and is not read before it is known who asks
		needed = min(needed, strangersBody)
	}
	needed += r.head
	if c.serving.Load() > 1 {
		needed += admission.RequestBytes
	} else {
		// Each connection may always have one short request, so that those who fill a share do not shut out newcomers.
		needed -= SmallHead
	}
	if needed > 0 {
		var err error
		if r.first, err = c.hold(r.owner, admission.Cost{Kind: admission.Request, Bytes: needed}); err != nil {
			return err
		}
	}
	if !r.owner.IsStranger() {
		return nil
	}
	var err error
	r.look, err = c.await(req.Context())
	return err
}

// Looked ends the turn of a stranger's request: its user is known, or somebody has to be asked. A nil Request has none.
func (r *Request) Looked() {
	if r != nil {
		r.look.end()
	}
}

// Owner returns to whom the request counts.
func (r *Request) Owner() admission.Owner { return r.owner }

// Identified counts the request for its user, "" for an anonymous one, and its connection if that had none. A stream is
// counted as such from here on. The error is an *admission.Full.
func (r *Request) Identified(user string, stream bool) error {
	r.Looked()
	owner := admission.Owner{Address: r.Conn.address, User: user}
	if user != "" {
		if err := r.Conn.Identified(user); err != nil {
			return err
		}
	}
	r.owner = owner
	if !stream {
		return r.first.Move(owner)
	}
	place, err := r.Conn.hold(owner, admission.Cost{Kind: admission.Stream, Bytes: admission.StreamBytes + r.head})
	if err != nil {
		return err
	}
	r.Conn.Release(r.first)
	r.first = place
	return nil
}

// Hold takes memory until the end of the request.
func (r *Request) Hold(kind admission.Kind, bytes int64) error {
	place, err := r.Conn.hold(r.owner, admission.Cost{Kind: kind, Bytes: bytes})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		r.Conn.Release(place)
		return nil
	}
	r.held = append(r.held, place)
	return nil
}

// Others is true when the connection has other requests.
func (r *Request) Others() bool { return r.Conn.serving.Load() > 1 }

func (r *Request) end() {
	r.Conn.serving.Add(-1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.look.end()
	r.Conn.Release(r.first)
	for _, place := range r.held {
		r.Conn.Release(place)
	}
}

// bodyHeld returns how much memory the body of a request takes at most until the API server has it.
func bodyHeld(req *http.Request) int64 {
	if req.ContentLength < 0 || req.ContentLength > MaxHeldBody {
		return 2 * MaxHeldBody
	}
	return req.ContentLength
}

// SizeOfHead returns what a request takes in memory without its body. The path is there twice: as it came, and as it is
// sent on.
func SizeOfHead(req *http.Request) int64 {
	size := int64(len(req.Method) + len(req.Host) + 2*len(req.RequestURI))
	for name, values := range req.Header {
		for _, value := range values {
			size += int64(len(name) + len(value) + fieldOverhead)
		}
	}
	return size
}

// afterAnswer calls end when the answer has been written, or cannot be written any more. That may be long after the
// handler returned: in HTTP/2, net/http waits for the client's window even with a small answer, and keeps the request
// in memory meanwhile. In HTTP/1 a connection has one request at a time, so the bounds on connections are enough.
func afterAnswer(w http.ResponseWriter, req *http.Request, end func()) {
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
