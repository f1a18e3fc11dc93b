package relay

import (
	"io"
	"net/http"
	"sync"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// upstreamWindow is how much of a response the API server may send before the client has read it. streamWindow is
	// the same for a stream. Go's own default is 4 MiB.
	upstreamWindow = 256 << 10
	streamWindow   = 8 << 10 // there may be ten thousand, with one event for all of them
	// upgradedBytes is the size of an upgraded connection: the buffers of both directions.
	upgradedBytes = 2 * (32 << 10)
	// maxAhead is how much of one response is buffered for a slow client, and aheadPiece the size of one piece. When
	// the kernel's buffer is full (boundUpstream), packets may be dropped, and the API server takes seconds to
	// retransmit them.
	maxAhead   = 16 << 20
	aheadPiece = 64 << 10
)

// holdResponse acquires the memory for a response before reading it; the memory for a stream was acquired with its
// request. It releases the seats of a request when the API server has finished it.
type holdResponse struct {
	next http.RoundTripper
	flow *flowcontrol.Controller
}

// RoundTrip implements http.RoundTripper.
func (t holdResponse) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	state := request.From(req.Context())
	state.ResponseOK = res.StatusCode == http.StatusOK
	state.ResponseLong = res.ContentLength >= longResponse || res.Header.Get("Content-Encoding") != ""
	needs := t.prepare(res, state)
	// The response to a login is short. It needs no permit, so that memory pressure never prevents logins.
	if needs > 0 && state.Login == nil {
		if err := state.Holds.Hold(flowcontrol.Response, needs); err != nil {
			_ = res.Body.Close()
			return nil, request.StatusFull(err)
		}
	}
	return res, nil
}

// prepare returns how many bytes of memory the response needs. An ordinary response that may be long gets a body that
// can be read ahead of a slow client.
func (t holdResponse) prepare(res *http.Response, state *request.State) (needs int64) {
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols:
		needs = upgradedBytes
	case state.Initial.Load():
		res.Body = &initialBody{ReadCloser: res.Body, state: state}
		return 0
	case state.LongRunning, res.Body == http.NoBody:
	case res.ContentLength >= 0 && res.ContentLength <= upstreamWindow: // the API server can send all of it at once
		state.ResponseFits = true
		needs = res.ContentLength + bufferSize
	default:
		body := newAheadBody(res.Body, t.flow, state.Holds.Flow(), state.ReleaseSeats)
		res.Body, state.ResponseBody = body, body
		return upstreamWindow + bufferSize
	}
	state.ReleaseSeats()
	return needs
}

// aheadBody is the body of an ordinary response that can be buffered for a slow client.
//
// A request occupies seats at the API server until its whole response is read. So when a client is slow, the rest of
// the response is buffered, as far as memory permits, and the API server finishes the request.
type aheadBody struct {
	upstream   io.ReadCloser
	controller *flowcontrol.Controller
	flow       flowcontrol.Flow
	done       func() // called when the API server has finished the response, perhaps more than once

	mu        sync.Mutex
	changed   *sync.Cond
	ahead     bool    // fill reads from upstream, after a pending Read
	reading   bool    // Read reads from upstream
	sentBytes int     // read from upstream
	pieces    []piece // buffered
	err       error   // the end of upstream, after all pieces
	closed    bool
}

type piece struct {
	data    []byte
	holding *flowcontrol.Permit
}

func newAheadBody(upstream io.ReadCloser, a *flowcontrol.Controller, flow flowcontrol.Flow, done func()) *aheadBody {
	body := &aheadBody{upstream: upstream, controller: a, flow: flow, done: done}
	body.changed = sync.NewCond(&body.mu)
	return body
}

// Read implements io.Reader.
func (b *aheadBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.pieces) == 0 && b.ahead {
		b.changed.Wait()
	}
	if len(b.pieces) > 0 {
		first := &b.pieces[0]
		n := copy(p, first.data)
		if first.data = first.data[n:]; len(first.data) == 0 {
			first.holding.Release()
			b.pieces[0] = piece{}
			b.pieces = b.pieces[1:]
		}
		return n, nil
	}
	if b.err != nil {
		return 0, b.err
	}
	b.reading = true
	b.mu.Unlock()
	n, err := b.upstream.Read(p)
	b.mu.Lock()
	b.reading = false
	b.sentBytes += n
	b.err = err
	b.changed.Signal()
	if err != nil {
		b.done()
	}
	return n, err
}

// Close implements io.Closer.
func (b *aheadBody) Close() error {
	b.mu.Lock()
	b.closed = true
	for _, one := range b.pieces {
		one.holding.Release()
	}
	b.pieces = nil
	b.mu.Unlock()
	return b.upstream.Close()
}

// ReadAhead implements request.ResponseBody. It starts to buffer the rest of the response.
func (b *aheadBody) ReadAhead() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ahead && !b.closed && b.err == nil {
		b.ahead = true
		go b.fill()
	}
}

// fill reads until the response ends, or the buffer is full. It waits for a pending Read, because concurrent reads
// would reorder the response: while the header is still being written, ReverseProxy already reads the body.
func (b *aheadBody) fill() {
	b.mu.Lock()
	for b.reading {
		b.changed.Wait()
	}
	for b.err == nil && !b.closed && len(b.pieces) < maxAhead/aheadPiece {
		b.mu.Unlock()
		one, err := b.next()
		b.mu.Lock()
		if one.holding == nil {
			break
		}
		b.err = err
		b.sentBytes += len(one.data)
		if b.closed || len(one.data) == 0 {
			one.holding.Release()
		} else {
			b.pieces = append(b.pieces, one)
		}
		b.changed.Signal()
	}
	b.ahead = false
	b.changed.Signal()
	b.mu.Unlock()
}

// next reads a piece, which is full unless there is an error. Its holding is nil when there is no memory to spare.
func (b *aheadBody) next() (one piece, err error) {
	one.holding, _ = b.controller.Enqueue(
		b.flow,
		flowcontrol.Cost{Resource: flowcontrol.Response, Bytes: aheadPiece, Leaves: 2},
	)
	if one.holding == nil {
		return one, nil
	}
	data, n := make([]byte, aheadPiece), 0
	for n < len(data) && err == nil {
		var read int
		read, err = b.upstream.Read(data[n:])
		n += read
	}
	one.data = data[:n]
	return one, err
}

// Whole implements request.ResponseBody. It is true when the API server has finished the response.
func (b *aheadBody) Whole() bool {
	_, end := b.sent()
	return end != nil
}

// sent returns how many bytes the API server has sent so far, and the end of the body: io.EOF when it is complete.
func (b *aheadBody) sent() (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sentBytes, b.err
}
