package relay

import (
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// seatTimeout is how long an ordinary request occupies its seats at most; longSeatTimeout is the same for a long
	// response. A request that takes longer waits for something else, such as a webhook or a slow client, and no longer
	// delays others.
	seatTimeout, longSeatTimeout = 250 * time.Millisecond, time.Second
	// initialPause is the time without an event after which the initial list of a watch is complete.
	initialPause = 20 * time.Millisecond
)

// AcquireSeats queues requests fairly by user before the API server. The API server's own queues are short and shared
// by users: under load, it rejects the requests of other users, too. At the API server, a request occupies a seat until
// its whole response is read, and a long list several. So a request with a long response takes several seats here, too,
// and the body of a request is read before its seat is acquired.
//
// A stream occupies a seat while it begins. Logins have their own priority level. A request with a long body that is
// still being sent needs no seat.
func AcquireSeats(
	next http.Handler,
	controller *flowcontrol.Controller,
	long *LongResponses,
	s runtime.NegotiatedSerializer,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		state := request.From(ctx)
		state.ReleaseSeats = func() {}
		if state.Login != nil {
			next.ServeHTTP(w, req)
			return
		}
		if !state.IsStream() {
			here, err := holdBody(req, state.Body)
			switch {
			case err != nil:
				request.WriteStatus(w, req, s, err)
				return
			case !here:
				next.ServeHTTP(w, req)
				return
			}
		}
		what := readBy(req)
		who, subFlow := state.Flow()
		cost := flowcontrol.Cost{Resource: flowcontrol.Forward, SubFlow: subFlow, Seats: 1}
		level := "writes"
		switch {
		case state.IsStream() && BeginsWithAll(req):
			state.Initial.Store(true)
			state.BeginsLong = func() { long.add(what, true, longFor) }
			level = "initial lists"
			if long.expected(what) {
				cost.Seats = flowcontrol.LongSeats
			}
		case state.IsStream(), !onlyReads(req):
		case long.expected(what), request.LongSelector(req.URL) > 0:
			level, cost.Seats = "long", flowcontrol.LongSeats
		default:
			level, cost.Yields = "reads", true
		}
		if subFlow == nil { // the requests of one user have a queue for each level
			cost.SubFlow = level
		}
		permit, err := controller.Acquire(ctx, who, cost)
		if err != nil {
			request.WriteStatus(w, req, s, request.StatusUndecided(ctx, err, "the API server is busy"))
			return
		}
		timeout := seatTimeout
		if cost.Seats == flowcontrol.LongSeats {
			timeout = longSeatTimeout
		}
		timer := time.AfterFunc(timeout, permit.Release)
		state.ReleaseSeats = func() {
			timer.Stop()
			permit.Release()
		}
		defer state.ReleaseSeats()
		defer long.note(what, state)
		next.ServeHTTP(w, req)
	})
}

// BeginsWithAll is true for a watch that begins with a list. It occupies a seat at the API server until the client has
// read the list.
func BeginsWithAll(req *http.Request) bool {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if !ok || info.Verb != "watch" || request.From(req.Context()).Upgrade != "" {
		return false
	}
	query := req.URL.Query()
	version := query.Get("resourceVersion")
	return version == "" || version == "0" || query.Has("sendInitialEvents")
}

// initialBody is the body of a watch that begins with a list. The list is complete when no byte follows for
// initialPause.
type initialBody struct {
	io.ReadCloser
	state *request.State
	read  int // bytes
}

// Read implements io.Reader.
func (b *initialBody) Read(p []byte) (int, error) {
	if !b.state.Initial.Load() {
		return b.ReadCloser.Read(p)
	}
	pause := time.AfterFunc(initialPause, func() {
		b.state.Initial.Store(false)
		b.state.ReleaseSeats()
	})
	defer pause.Stop()
	n, err := b.ReadCloser.Read(p)
	if b.read += n; b.read >= longResponse && b.read-n < longResponse {
		b.state.BeginsLong()
	}
	return n, err
}
