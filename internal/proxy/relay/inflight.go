package relay

import (
	"io"
	"net/http"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/fairqueue"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/work"
)

const (
	// turnLasts is for how long a request counts as work of the API server. A request that takes longer waits for
	// something else, such as a webhook, or a client that does not read. Others do not wait for it any longer.
	turnLasts = time.Second
	// initialPause is after how long without an event a watch has sent all objects that there were.
	initialPause = 20 * time.Millisecond
)

// inFlight bounds how many requests of all users together are at the API server at a time. The others wait here, and
// users take turns. The API server has queues of its own, but they are short and users share them: when many users ask
// for much at the same time, it refuses the requests of others, too.
//
// Streams have a turn while they begin, as the API server has a seat for each of them until then.
type inFlight struct {
	next http.RoundTripper
	// all is for requests of every kind. Those for long answers need a turn of long first, and watches that begin with
	// all objects one of watches.
	all, long, watches *work.Queue
}

// RoundTrip implements http.RoundTripper.
func (t inFlight) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	state := request.From(ctx)
	// Logins have turns of their own, and a body that is still on its way may take its time.
	if state == nil || state.Login != nil || req.Body != nil && req.Body != http.NoBody && req.GetBody == nil {
		return t.next.RoundTrip(req)
	}
	queues := []*work.Queue{t.all}
	switch {
	case state.LongExpected:
		queues = []*work.Queue{t.long, t.all}
	case BeginsWithAll(req):
		state.Initial.Store(true)
		queues = []*work.Queue{t.watches, t.all}
	}
	var turns [2]*fairqueue.Ticket
	done := func() {
		for _, turn := range turns {
			if turn != nil {
				turn.Done()
			}
		}
	}
	who := work.AskerOf(ctx).Owner()
	for i, queue := range queues {
		turns[i] = queue.Join(who)
		if err := turns[i].Wait(ctx); err != nil {
			done()
			if request.HasLeft(ctx) {
				return nil, request.ErrClientLeft // nothing was sent
			}
			return nil, err
		}
	}
	timer := time.AfterFunc(turnLasts, done)
	end := func() {
		if timer.Stop() {
			done()
		}
	}
	if state.WriteTurn != nil {
		defer time.AfterFunc(turnLasts, state.WriteTurn.Done).Stop()
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
	case state.LongRunning, state.Upgrade != "", res.Body == nil, res.Body == http.NoBody:
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
