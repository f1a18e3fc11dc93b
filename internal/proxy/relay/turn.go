package relay

import (
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/internal/requestinfo"
)

const (
	// turnLasts is for how long a request counts as work of the API server. A request that takes longer waits for
	// something else, such as a webhook, or a client that does not read. Others do not wait for it any longer.
	turnLasts = 250 * time.Millisecond
	// initialPause is after how long without an event a watch has sent all objects that there were.
	initialPause = 20 * time.Millisecond
)

// TakeTurn lets users take turns at the API server. That has queues of its own, but they are short and users share them:
// when many users ask for much at the same time, it refuses the requests of others, too. It gives each request a seat
// until the whole answer is taken, and long lists several. So a request whose answer is long takes as many seats here, and
// the body of a request is here before its turn.
//
// Streams have a turn while they begin. Logins have turns of their own, and a long body that is still on its way may take
// its time.
func TakeTurn(
	next http.Handler,
	turns *admission.Admission,
	long *LongAnswers,
	s runtime.NegotiatedSerializer,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		state := request.From(ctx)
		if state.Login == nil && !state.IsStream() {
			if err := holdBody(req, state.Body); err != nil {
				request.WriteStatus(w, req, s, errUnreadableBody)
				return
			}
		}
		if state.Login != nil || !state.IsStream() && isOnItsWay(req) {
			next.ServeHTTP(w, req)
			return
		}
		what, reads := readBy(req)
		who, member := state.Asker()
		cost := admission.Cost{Kind: admission.Forward, Member: member, Seats: 1}
		kind := "writes"
		switch {
		case state.IsStream() && BeginsWithAll(req):
			state.Initial.Store(true)
			kind, cost.Seats = "beginnings", admission.BeginningSeats
		case state.IsStream(), !onlyReads(req):
		case reads && long.expected(what), requestinfo.LongSelector(req.URL) > 0:
			kind, cost.Seats = "long", admission.LongSeats
		default:
			kind = "reads"
		}
		if member == nil { // what one user asks for takes turns by what it is
			cost.Member = kind
		}
		turn, err := turns.Enter(ctx, who, cost)
		if err != nil {
			request.WriteStatus(w, req, s, request.StatusUnanswered(ctx, err, "the API server is busy"))
			return
		}
		state.EndTurn = sync.OnceFunc(turn.Leave)
		defer state.EndTurn()
		if reads && !state.IsStream() {
			defer long.note(what, state)
		}
		next.ServeHTTP(w, req)
	})
}

// isOnItsWay is true when holdBody has left a part of the body. A request without a body may have an empty one, over HTTP/2.
func isOnItsWay(req *http.Request) bool {
	return req.Body != nil && req.Body != http.NoBody && req.ContentLength != 0 && req.GetBody == nil
}

// endTurn ends the turn of a request when the API server is done with it, or after turnLasts.
type endTurn struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t endTurn) RoundTrip(req *http.Request) (*http.Response, error) {
	state := request.From(req.Context())
	if state == nil || state.EndTurn == nil {
		return t.next.RoundTrip(req)
	}
	timer := time.AfterFunc(turnLasts, state.EndTurn)
	end := func() {
		timer.Stop()
		state.EndTurn()
	}
	res, err := t.next.RoundTrip(req)
	switch {
	case err != nil:
	case state.Initial.Load():
		res.Body = newBeginningBody(res.Body, func() {
			state.Initial.Store(false)
			end()
		})
		return res, nil
	case state.IsStream(), res.Body == nil, res.Body == http.NoBody:
	case res.ContentLength >= 0 && res.ContentLength <= upstreamWindow: // the API server can send all of it at once
	default:
		res.Body = &endedBody{ReadCloser: res.Body, end: end}
		return res, nil
	}
	end()
	return res, err
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

// endedBody calls end when the API server is done with the answer.
type endedBody struct {
	io.ReadCloser
	end func()
}

// Read implements io.Reader.
func (b *endedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}

// Close implements io.Closer.
func (b *endedBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

// beginningBody is the body of a watch that begins with all objects. It calls over, perhaps more than once, when they
// are here: nothing more comes for initialPause.
type beginningBody struct {
	endedBody
	pause *time.Timer // nil when they were here before
}

func newBeginningBody(upstream io.ReadCloser, over func()) *beginningBody {
	b := &beginningBody{
		endedBody: endedBody{ReadCloser: upstream, end: over},
		pause:     time.AfterFunc(initialPause, over),
	}
	b.pause.Stop()
	return b
}

// Read implements io.Reader.
func (b *beginningBody) Read(p []byte) (int, error) {
	if b.pause == nil {
		return b.ReadCloser.Read(p)
	}
	b.pause.Reset(initialPause)
	n, err := b.endedBody.Read(p)
	if !b.pause.Stop() || err != nil {
		b.pause = nil
	}
	return n, err
}
