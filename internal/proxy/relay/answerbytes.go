package relay

import (
	"net/http"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// upstreamWindow is how much of an answer the API server may send before the client has read it, and streamWindow
	// that of a stream. Go's own default is 4 MiB.
	upstreamWindow = 256 << 10
	streamWindow   = 8 << 10 // there may be ten thousand, and one event for all of them
	// upgradedBytes is how much an upgraded connection holds: the buffers of both directions.
	upgradedBytes = 2 * (32 << 10)
)

// holdAnswer takes the memory that an answer may need before anything is done with it. That of a stream was taken with
// its request.
type holdAnswer struct {
	next      http.RoundTripper
	admission *admission.Admission
}

// RoundTrip implements http.RoundTripper.
func (t holdAnswer) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(req)
	state := request.From(req.Context())
	if err != nil || t.admission == nil || state == nil || state.Holds == nil {
		return res, err
	}
	noteAnswer(state, res)
	if n := answerBytes(res, state); n > 0 {
		if err := state.Holds.Hold(admission.Answer, n); err != nil {
			_ = res.Body.Close()
			return nil, request.StatusFull(err)
		}
	}
	t.readAhead(res, state)
	return res, nil
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
