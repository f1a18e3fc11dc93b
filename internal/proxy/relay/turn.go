package relay

import (
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/internal/requestinfo"
)

const (
	// turnLasts is for how long a request counts as work of the API server, and longTurnLasts the same of one for a long
	// answer. A request that takes longer waits for something else, such as a webhook, or a client that does not read.
	// Others do not wait for it any longer.
	turnLasts, longTurnLasts = 250 * time.Millisecond, time.Second
	// initialPause is after how long without an event a watch has sent all objects that there were.
	initialPause = 20 * time.Millisecond
)

// AcquireSeats lets users take turns at the API server. That has queues of its own, but they are short and users share
// them: when many users ask for much at the same time, it refuses the requests of others, too. It gives each request a
// seat until the whole response is taken, and long lists several. So a request whose answer is long takes as many seats
// here, and the body of a request is here before its turn.
//
// Streams have a turn while they begin. Logins have turns of their own, and a long body that is still on its way may
// take its time.
func AcquireSeats(
	next http.Handler,
	turns *flowcontrol.Controller,
	long *LongAnswers,
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
		who, subFlow := state.Asker()
		cost := flowcontrol.Cost{Resource: flowcontrol.Forward, SubFlow: subFlow, Seats: 1}
		kind := "writes"
		switch {
		case state.IsStream() && BeginsWithAll(req):
			state.Initial.Store(true)
			state.BeginsLong = func() { long.add(what, true, longFor) }
			kind = "beginnings"
			if long.expected(what) {
				cost.Seats = flowcontrol.LongSeats
			}
		case state.IsStream(), !onlyReads(req):
		case long.expected(what), requestinfo.LongSelector(req.URL) > 0:
			kind, cost.Seats = "long", flowcontrol.LongSeats
		default:
			kind, cost.Yields = "reads", true
		}
		if subFlow == nil { // what one user asks for takes turns by what it is
			cost.SubFlow = kind
		}
		turn, err := turns.Acquire(ctx, who, cost)
		if err != nil {
			request.WriteStatus(w, req, s, request.StatusUnanswered(ctx, err, "the API server is busy"))
			return
		}
		atMost := turnLasts
		if cost.Seats == flowcontrol.LongSeats {
			atMost = longTurnLasts
		}
		ends := time.AfterFunc(atMost, turn.Release)
		state.ReleaseSeats = func() {
			ends.Stop()
			turn.Release()
		}
		defer state.ReleaseSeats()
		defer long.note(what, state)
		next.ServeHTTP(w, req)
	})
}

// BeginsWithAll is true for a watch that begins with the objects that there are. The API server has a seat for it until
// the client has taken them.
func BeginsWithAll(req *http.Request) bool {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if !ok || info.Verb != "watch" || request.From(req.Context()).Upgrade != "" {
		return false
	}
	query := req.URL.Query()
	version := query.Get("resourceVersion")
	return version == "" || version == "0" || query.Has("sendInitialEvents")
}

// beginningBody is the body of a watch that begins with all objects. They are here when nothing more comes for
// initialPause.
type beginningBody struct {
	io.ReadCloser
	state *request.State
	taken int // bytes
}

// Read implements io.Reader.
func (b *beginningBody) Read(p []byte) (int, error) {
	if !b.state.Initial.Load() {
		return b.ReadCloser.Read(p)
	}
	pause := time.AfterFunc(initialPause, func() {
		b.state.Initial.Store(false)
		b.state.ReleaseSeats()
	})
	defer pause.Stop()
	n, err := b.ReadCloser.Read(p)
	if b.taken += n; b.taken >= longAnswer && b.taken-n < longAnswer {
		b.state.BeginsLong()
	}
	return n, err
}
