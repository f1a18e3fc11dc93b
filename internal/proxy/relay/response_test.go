package relay

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

var jane = flowcontrol.Flow{Address: "192.0.2.1", User: "jane"}

func standard() *flowcontrol.Controller {
	return flowcontrol.New(flowcontrol.LimitsFor(flowcontrol.DefaultMemory, 2))
}

// piecemeal is a body that arrives in pieces, one each second.
type piecemeal struct {
	pieces []string
	times  []time.Time
}

func (p *piecemeal) Read(into []byte) (int, error) {
	time.Sleep(time.Second)
	p.times = append(p.times, time.Now())
	if len(p.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(into, p.pieces[0])
	p.pieces = p.pieces[1:]
	return n, nil
}

func (p *piecemeal) Close() error { return nil }

// TestReadsAheadInOrder starts to read ahead at every moment of a response, also during a read.
func TestReadsAheadInOrder(t *testing.T) {
	t.Parallel()
	const want = "one, two, three, four, five"
	for from := range 13 {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			upstream := &piecemeal{pieces: []string{"one, ", "two, ", "three, ", "four, ", "five"}}
			body := newAheadBody(upstream, standard(), jane, func() {})
			go func() {
				time.Sleep(time.Duration(from) * 500 * time.Millisecond)
				body.ReadAhead()
			}()
			var got strings.Builder
			piece := make([]byte, 100)
			for {
				n, err := body.Read(piece)
				got.Write(piece[:n])
				if errors.Is(err, io.EOF) {
					break
				}
				must.Do(t, err)
				time.Sleep(250 * time.Millisecond) // it is written to the client
			}
			synctest.Wait()
			if got.String() != want {
				t.Errorf("reading ahead after %s: want %q, got %q", time.Duration(from)*500*time.Millisecond, want, got.String())
			}
			for i, at := range upstream.times[1:] {
				if at.Sub(upstream.times[i]) < time.Second {
					t.Errorf("two read at a time, %s after the beginning", at.Sub(began))
				}
			}
		})
	}
}

// TestReadsAheadAfterTheRead starts to read ahead during a read: it begins after that read.
func TestReadsAheadAfterTheRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := &piecemeal{pieces: []string{"one", "two"}}
		body := newAheadBody(upstream, standard(), jane, func() {})
		time.AfterFunc(500*time.Millisecond, body.ReadAhead)
		if n, err := body.Read(make([]byte, 100)); n != len("one") || err != nil {
			t.Fatalf("read %d bytes: %v", n, err)
		}
		time.Sleep(10 * time.Second) // the client is slow
		if !body.Whole() {
			t.Error("the rest of the response still waits at the API server")
		}
	})
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) Close() error               { return nil }

// TestReadsAheadWithinBounds buffers a response without an end. A quarter of the user's memory stays free, and one
// response does not use up a large limit.
func TestReadsAheadWithinBounds(t *testing.T) {
	t.Parallel()
	const little = 8 << 20
	for name, test := range map[string]struct{ memory, least, most int64 }{
		"of a user's share":   {little, little/10 - aheadPiece, little / 4 * 3 / 4},
		"of a large response": {flowcontrol.DefaultMemory, maxAhead, maxAhead},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := flowcontrol.New(flowcontrol.LimitsFor(test.memory, 2))
				body := newAheadBody(endless{}, a, jane, func() {})
				body.ReadAhead()
				synctest.Wait()
				held := a.Total(jane)
				if sent, _ := body.sent(); held < test.least || held > test.most || int64(sent) != held {
					t.Errorf("want %d to %d bytes taken and counted, got %d and %d", test.least, test.most, sent, held)
				}
				must.Get(io.ReadFull(body, make([]byte, aheadPiece)))(t)
				if got := a.Total(jane); got != held-aheadPiece {
					t.Errorf("want what was read given back, got %d bytes held", got)
				}
				_ = body.Close()
				if got := a.Total(jane); got != 0 {
					t.Errorf("want them given back, got %d", got)
				}
			})
		})
	}
}
