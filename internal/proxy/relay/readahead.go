package relay

import (
	"io"
	"net/http"
	"sync"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// maxAhead is how much of one answer is taken from the API server before the client has read it.
	maxAhead = 6 << 20
	// aheadPiece is how much of it is counted at a time.
	aheadPiece = 64 << 10
)

// aheadBody is the body of an ordinary answer, with room for what the client is slow to read.
//
// The API server has few seats, and a request keeps its own until the whole answer is taken, a long list several of
// them. So as soon as a client does not keep up, the rest of the answer is taken into memory, as far as there is plenty,
// and the API server is done with it.
type aheadBody struct {
	upstream  io.ReadCloser
	stalled   func() // called when the rest of the answer stays with the API server; may be nil
	admission *admission.Admission
	owner     admission.Owner

	mu      sync.Mutex
	changed *sync.Cond
	ahead   bool    // the goroutine of ReadAhead is the one that reads from upstream
	reading bool    // Read is the one that does
	wanted  bool    // ReadAhead was called meanwhile
	taken   int     // bytes from upstream
	pieces  []piece // read and not yet taken
	err     error   // what upstream ended with, after all pieces
	closed  bool
}

type piece struct {
	data    []byte
	holding *admission.Place
}

func newAheadBody(upstream io.ReadCloser, a *admission.Admission, owner admission.Owner) *aheadBody {
	body := &aheadBody{upstream: upstream, admission: a, owner: owner}
	body.changed = sync.NewCond(&body.mu)
	return body
}

// Read implements io.Reader.
func (b *aheadBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	for len(b.pieces) == 0 && b.ahead {
		b.changed.Wait()
	}
	if len(b.pieces) > 0 {
		defer b.mu.Unlock()
		first := &b.pieces[0]
		n := copy(p, first.data)
		if first.data = first.data[n:]; len(first.data) == 0 {
			first.holding.Leave()
			b.pieces[0] = piece{}
			b.pieces = b.pieces[1:]
		}
		return n, nil
	}
	err := b.err
	b.reading = err == nil
	b.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := b.upstream.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	b.taken += n
	if err != nil {
		b.err = err
	}
	if b.wanted {
		b.begin()
	}
	return n, err
}

// Close implements io.Closer.
func (b *aheadBody) Close() error {
	b.mu.Lock()
	b.closed = true
	for _, one := range b.pieces {
		one.holding.Leave()
	}
	b.pieces = nil
	b.mu.Unlock()
	return b.upstream.Close()
}

// ReadAhead implements request.Answer. It begins to take the rest of the answer into memory. While Read is waiting for
// the API server, it is only noted: two at a time would mix up the answer. That happens when the head of the answer is
// written slowly, which ReverseProxy does beside the body.
func (b *aheadBody) ReadAhead() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wanted = b.reading; !b.wanted {
		b.begin()
	}
}

// begin starts the goroutine that reads ahead, unless it runs or there is nothing to read. The caller holds b.mu.
func (b *aheadBody) begin() {
	b.wanted = false
	if b.ahead || b.closed || b.err != nil {
		return
	}
	b.ahead = true
	go b.fill()
}

// fill reads until the answer is over, or too much of it waits.
func (b *aheadBody) fill() {
	for {
		holding := b.admission.Spare(b.owner, admission.Cost{Kind: admission.Answer, Bytes: aheadPiece})
		if holding == nil {
			break
		}
		data, n, err := make([]byte, aheadPiece), 0, error(nil)
		for n < len(data) && err == nil {
			var read int
			read, err = b.upstream.Read(data[n:])
			n += read
		}
		if !b.add(piece{data[:n], holding}, err) {
			b.stall()
			return
		}
	}
	b.stop()
}

// add keeps a piece for the client. It returns false, and has stopped, when there is to be no other.
func (b *aheadBody) add(one piece, err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	b.taken += len(one.data)
	if b.closed || len(one.data) == 0 {
		one.holding.Leave()
	} else {
		b.pieces = append(b.pieces, one)
	}
	more := err == nil && !b.closed && len(b.pieces) < maxAhead/aheadPiece
	b.ahead = more
	b.changed.Signal()
	return more
}

func (b *aheadBody) stop() {
	defer b.stall()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ahead = false
	b.changed.Signal()
}

// stall ends the turn of the request at the API server, which does nothing for it any more.
func (b *aheadBody) stall() {
	if b.stalled != nil {
		b.stalled()
	}
}

// Whole implements request.Answer. It is true when the API server is done with the answer.
func (b *aheadBody) Whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err != nil
}

// Length implements request.Answer. It is how much the API server has sent so far.
func (b *aheadBody) Length() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken
}

// Complete implements request.Answer. It is true when the API server has sent all of the answer, and it did not break off.
func (b *aheadBody) Complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err == io.EOF //nolint:errorlint // upstream's own
}

// readAhead prepares the answer to an ordinary request for a client that reads slowly. An answer of at most
// upstreamWindow needs nothing: the API server can send all of it at once.
func (t holdAnswer) readAhead(res *http.Response, state *request.State) {
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols, state.LongRunning, res.Body == nil, res.Body == http.NoBody:
	case res.ContentLength >= 0 && res.ContentLength <= upstreamWindow:
		state.AnswerFits = true
	default:
		body := newAheadBody(res.Body, t.admission, state.Holds.Owner())
		body.stalled = state.EndTurn
		res.Body, state.Answer = body, body
	}
}
