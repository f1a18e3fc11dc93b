package relay

import (
	"net/http"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// upstreamWindow is how much of an answer the API server may send before the client has read it, and streamWindow
	// that of a stream. Go's own default is 4 MiB.
	upstreamWindow = 256 << 10
	streamWindow   = 32 << 10
	// StreamBytes is how much a stream holds that is not read: its window and its buffer.
	StreamBytes = streamWindow + streamBufferSize
	// upgradedBytes is how much an upgraded connection holds: the buffers of both directions.
	upgradedBytes = 2 * (32 << 10)
)

// holdAnswer takes the memory that an answer may need from the budget before anything is done with it. Streams hold
// next to nothing as long as they are read, and are counted when they are not (slowReaders).
type holdAnswer struct {
	next   http.RoundTripper
	budget *budget.Budget
}

// RoundTrip implements http.RoundTripper.
func (t holdAnswer) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(req)
	state := request.From(req.Context())
	if err != nil || t.budget == nil || state == nil {
		return res, err
	}
	noteAnswer(state, res)
	if n := answerBytes(res, state) - state.Reserved; n > 0 {
		held, err := t.budget.Acquire(state.Client, budget.Bytes, n)
		if err != nil {
			_ = res.Body.Close()
			return nil, budget.TooMany(err).Status()
		}
		state.Hold(held)
	}
	t.readAhead(res, state)
	return res, nil
}

// reserveAnswer takes the memory for an answer that will be long from the budget before the API server is asked. When
// there is not enough, the API server would do its work and then wait, with seats that others need, until the client
// has read.
type reserveAnswer struct {
	next   http.RoundTripper
	budget *budget.Budget
}

// RoundTrip implements http.RoundTripper.
func (t reserveAnswer) RoundTrip(req *http.Request) (*http.Response, error) {
	state := request.From(req.Context())
	if t.budget != nil && state != nil && state.LengthExpected > 0 {
		n := min(state.LengthExpected, maxAhead)
		held, err := t.budget.Acquire(state.Client, budget.Bytes, n)
		if err != nil {
			return nil, budget.TooMany(err).Status()
		}
		state.Hold(held)
		state.Reserved = n
	}
	return t.next.RoundTrip(req)
}

func answerBytes(res *http.Response, state *request.State) int64 {
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols:
		return upgradedBytes
	case state.LongRunning || res.Body == nil || res.Body == http.NoBody:
		return 0
	case state.Login != nil:
		return 0 // a certificate and a key, or a message: so that no other client's bytes keep a user from logging in
	case res.ContentLength >= 0:
		return min(res.ContentLength, upstreamWindow) + bufferSize
	}
	return upstreamWindow + bufferSize
}
