package relay

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// piecemeal is a body that comes in pieces, one each second.
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

// TestReadsAheadInOrder begins to read ahead at every moment of an answer, also while it is being read.
func TestReadsAheadInOrder(t *testing.T) {
	t.Parallel()
	const want = "one, two, three, four, five"
	for from := range 13 {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			upstream := &piecemeal{pieces: []string{"one, ", "two, ", "three, ", "four, ", "five"}}
			body := newAheadBody(upstream, budget.New(budget.Limits{}, time.Now), budget.Client{User: "jane"}, 0)
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
				if err != nil {
					t.Fatal(err)
				}
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

// TestReadsAheadAfterTheRead is about a request to read ahead that comes during a read: it is not forgotten.
func TestReadsAheadAfterTheRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := &piecemeal{pieces: []string{"one", "two"}}
		body := newAheadBody(upstream, budget.New(budget.Limits{}, time.Now), budget.Client{User: "jane"}, 0)
		time.AfterFunc(500*time.Millisecond, body.ReadAhead)
		if n, err := body.Read(make([]byte, 100)); n != len("one") || err != nil {
			t.Fatalf("read %d bytes: %v", n, err)
		}
		time.Sleep(10 * time.Second) // the client takes its time
		if !body.Whole() {
			t.Error("the rest of the answer still waits at the API server")
		}
	})
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) Close() error               { return nil }

// TestReadsAheadWithinBounds takes an answer without an end into memory. A quarter of each share stays free, and of one
// answer not all of a large share is used.
func TestReadsAheadWithinBounds(t *testing.T) {
	t.Parallel()
	const share = 1 << 20
	for name, test := range map[string]struct {
		limits [budget.NumShares]int64
		want   int64
	}{
		"of a user":         {[budget.NumShares]int64{budget.PerUser: share}, share * 3 / 4},
		"of an address":     {[budget.NumShares]int64{budget.PerAddress: share}, share * 3 / 4},
		"of all":            {[budget.NumShares]int64{budget.Total: share}, share * 3 / 4},
		"of a large answer": {[budget.NumShares]int64{budget.Total: 100 * maxAhead}, maxAhead},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := budget.New(budget.Limits{budget.Bytes: test.limits}, nil)
				body := newAheadBody(endless{}, b, budget.Client{Address: "192.0.2.1", User: "jane"}, 0)
				body.ReadAhead()
				synctest.Wait()
				if got := b.Held(budget.Bytes); got != test.want || int64(body.Length()) != got {
					t.Errorf("want %d bytes taken and counted, got %d and %d", test.want, body.Length(), got)
				}
				if _, err := io.ReadFull(body, make([]byte, aheadPiece)); err != nil {
					t.Fatal(err)
				}
				if got := b.Held(budget.Bytes); got != test.want-aheadPiece {
					t.Errorf("want what was read given back, got %d bytes held", got)
				}
				_ = body.Close()
				if got := b.Held(budget.Bytes); got != 0 {
					t.Errorf("want them given back, got %d", got)
				}
			})
		})
	}
}
