package memory

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const mega = 1 << 20

func TestLoad(t *testing.T) {
	t.Parallel()
	second := func(rate uint64, h heap) heap { h.allocated = rate; return h } // allocated in that second
	small := heap{live: 10 * mega, scanned: mega, unused: 5 * mega}
	tests := []struct {
		name    string
		seconds []heap
		percent int
		gives   int
	}{
		{
			name:    "collects as Go does with little to do",
			seconds: []heap{second(8*mega, small), second(8*mega, small), second(8*mega, small)}, percent: 100,
		},
		{name: "does not take a start for load", seconds: []heap{second(200*mega, small)}, percent: 100},
		{
			name:    "lets the heap grow to 64 MB under load",
			seconds: []heap{second(200*mega, small), second(200*mega, small)}, percent: 100 * 54 / 11,
		},
		{
			name: "changes nothing when much is live",
			seconds: []heap{
				second(200*mega, heap{live: 400 * mega, unused: 300 * mega}),
				second(200*mega, heap{live: 400 * mega, unused: 300 * mega}),
			},
			percent: 100,
		},
		{
			name:    "bounds itself when next to nothing is live",
			seconds: []heap{second(200*mega, heap{live: 1000}), second(200*mega, heap{live: 1000})}, percent: maxPercent,
		},
		{
			name:    "collects as Go does when the load is over",
			seconds: []heap{second(200*mega, small), second(200*mega, small), second(3*mega, small)}, percent: 100,
		},
		{
			name: "gives memory back when it gets quiet",
			seconds: []heap{
				second(200*mega, small), second(200*mega, small), second(mega, heap{live: 10 * mega, unused: 40 * mega}),
			},
			percent: 100, gives: 1,
		},
		{name: "keeps what is not worth a collection", seconds: []heap{second(mega, small)}, percent: 100},
		{
			name:    "keeps a small part of much",
			seconds: []heap{second(mega, heap{live: 400 * mega, unused: 50 * mega})}, percent: 100,
		},
		{
			name:    "gives memory back once in ten seconds",
			seconds: slices.Repeat([]heap{second(mega, heap{live: 10 * mega, unused: 40 * mega})}, 15), percent: 100, gives: 2,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l, at := &load{}, time.Now()
			var allocated uint64
			percent, gives := 0, 0
			for _, h := range test.seconds {
				at = at.Add(time.Second)
				allocated += h.allocated
				h.allocated = allocated
				var give bool
				if percent, give = l.next(h, at, time.Second); give {
					gives++
				}
			}
			if percent != test.percent || gives != test.gives {
				t.Errorf("want %d%% and %d returns, got %d%% and %d", test.percent, test.gives, percent, gives)
			}
		})
	}
}

// TestRun has the runtime adapt to a load that comes and goes, and reset at the end.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		loaded := func() time.Duration { // how much of the load, from second 10 to 20, is over
			return min(max(time.Since(began)-10*time.Second, 0), 10*time.Second)
		}
		var percent, unmapped atomic.Int64
		percent.Store(standardPercent)
		p := process{
			heap: func() heap {
				allocated := uint64(loaded().Seconds() * 100 * mega)
				return heap{live: 10 * mega, allocated: allocated, unused: allocated % (50 * mega)}
			},
			setPercent: func(n int) { percent.Store(int64(n)) },
			give:       func() {},
			unmap:      func() { unmapped.Add(1) },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.run(ctx)
		}()
		see := func(at time.Duration, want int64) {
			t.Helper()
			time.Sleep(time.Until(began.Add(at))) // of synctest's fake clock
			synctest.Wait()
			if got := percent.Load(); got != want {
				t.Errorf("after %s: want %d%%, got %d%%", at, want, got)
			}
		}
		see(5*time.Second, standardPercent)
		if n := unmapped.Load(); n != 1 {
			t.Errorf("after the start: want the program unmapped once, got %d times", n)
		}
		see(11*time.Second, standardPercent)
		see(15*time.Second, 540)
		see(25*time.Second, standardPercent)
		see(50*time.Second, standardPercent)
		if n := unmapped.Load(); n != 2 {
			t.Errorf("after the load: want the program unmapped once more, got %d times in all", n)
		}
		cancel()
		<-done
		if got := percent.Load(); got != standardPercent {
			t.Errorf("in the end: want the runtime as it was, got %d%%", got)
		}
	})
}

// TestReads reads the memory of this process.
func TestReads(t *testing.T) {
	t.Parallel()
	read := newHeapReader()
	before := read()
	kept := make([]byte, 8*mega)
	after := read()
	if len(kept) == 0 || after.allocated-before.allocated < 8*mega {
		t.Errorf("allocated 8 MB, and observed %d bytes", after.allocated-before.allocated)
	}
	if after.unused == 0 && after.live == 0 {
		t.Error("there is no memory at all")
	}
}

func TestLeavesTheEnvironmentItsWill(t *testing.T) {
	t.Setenv("GOGC", "100")
	done := make(chan struct{})
	go func() {
		defer close(done)
		Run(t.Context()) // returns at once
	}()
	<-done
}
