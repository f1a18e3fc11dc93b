package relay

import (
	"bytes"
	"errors"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/fairqueue"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/work"
	"github.com/pinniped-toolkit/pinniped/internal/requestinfo"
)

// MaxHeldBody is how much of a body is here before its request is sent on. Almost all bodies are shorter.
const MaxHeldBody = 128 << 10

// LimitForwarded bounds how many ordinary requests of one user are at the API server at a time. The others wait for
// their turn. The API server has few seats, about 50 for most users together, and gives each request its own until the
// whole answer is taken. So a client that asks for much and reads slowly would take them all. Clients without a user
// count as one user here, and their connections take turns.
//
// Reads and writes take turns of their own. That of a write ends when the API server has not begun to answer within a
// second: then it waits for something else, such as a webhook (inFlight).
//
// Streams have no turn: the API server needs no seat for them once they have begun. Logins have turns of their own.
//
// Those whose answers are long have fewer turns, so that one user's long lists leave processors of the API server to
// others. A long selector keeps one busy for as long, to parse it.
func LimitForwarded(
	next http.Handler,
	forwarded *work.Queue,
	long *LongAnswers,
	s runtime.NegotiatedSerializer,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		state := request.From(ctx)
		if state.LongRunning || state.Upgrade != "" || state.Login != nil {
			next.ServeHTTP(w, req)
			return
		}
		if err := holdBody(req, state.Body); err != nil {
			request.WriteStatus(w, req, s, errUnreadableBody)
			return
		}
		who := work.AskerOf(ctx)
		owner := fairqueue.Owner{Name: who.Client.User}
		if owner.Name == "" {
			owner.Member = who.Connection
		}
		writes := !onlyReads(req)
		if writes {
			owner.Name = "\x00" + owner.Name // no user has such a name
		}
		what, reads := readBy(req)
		if reads {
			state.LengthExpected, state.LongExpected = long.expected(what)
		}
		if requestinfo.LongSelector(req.URL) > 0 {
			state.LongExpected = true
		}
		if state.LongExpected {
			turn := long.turns.Join(owner)
			defer turn.Done()
			if err := turn.Wait(ctx); err != nil {
				request.WriteStatus(w, req, s, request.ErrClientLeft)
				return
			}
		}
		turn := forwarded.Join(owner)
		defer turn.Done()
		if err := turn.Wait(ctx); err != nil {
			request.WriteStatus(w, req, s, request.ErrClientLeft)
			return
		}
		if writes {
			state.WriteTurn = turn
		}
		if reads {
			defer long.note(what, state)
		}
		next.ServeHTTP(w, req)
	})
}

var errUnreadableBody = apierrors.NewBadRequest("the request body could not be read")

// holdBody reads the body, up to maxHeldBody, so that a body which comes slowly keeps nothing busy at the API server. A
// body that is here as a whole can be sent again when the API server has not processed it (GOAWAY).
func holdBody(req *http.Request, bound request.Body) error {
	if req.Body == nil || req.Body == http.NoBody || req.ContentLength == 0 {
		return nil
	}
	req.Header.Del("Expect") // net/http has told the client to go on, or does so now
	if n := req.ContentLength; n > 0 && n <= MaxHeldBody {
		body := make([]byte, n)
		if _, err := io.ReadFull(req.Body, body); err != nil {
			return &clientBodyError{err}
		}
		if bound != nil {
			bound.Unbind() // also when its end is not announced yet
		}
		setBody(req, body)
		return nil
	}
	var body bytes.Buffer
	_, err := io.CopyN(&body, req.Body, MaxHeldBody)
	switch {
	case errors.Is(err, io.EOF) && req.ContentLength < 0:
		setBody(req, body.Bytes())
	case err != nil:
		return &clientBodyError{err}
	default:
		req.Body = &startedBody{io.MultiReader(&body, req.Body), req.Body}
	}
	return nil
}

// setBody gives the request a body that is in memory.
func setBody(req *http.Request, body []byte) {
	req.TransferEncoding, req.ContentLength = nil, int64(len(body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.Body, _ = req.GetBody()
}

// startedBody is a body whose first part has been read.
type startedBody struct {
	io.Reader
	io.Closer
}
