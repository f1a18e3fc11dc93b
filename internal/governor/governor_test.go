package governor

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const mega = 1 << 20

func TestProcessors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		now  int
		used []float64 // in each tenth of a second
		want int

		goroutines int
	}{
		{name: "stays at one with little to do", now: 1, used: slices.Repeat([]float64{0.4}, 30), want: 1},
		{name: "uses all at the first look when one is busy", now: 1, used: []float64{0.1, 0.71}, want: 8},
		{name: "uses all when one event may wake many watches", now: 1, used: []float64{0}, goroutines: 900, want: 8},
		{name: "does not fall within a second", now: 8, used: slices.Repeat([]float64{0}, 9), want: 8},
		{name: "falls to one after a quiet second", now: 8, used: slices.Repeat([]float64{0.3}, 10), want: 1},
		{
			name: "keeps twice as many as were busy at the peak of a second",
			now:  8, used: append(slices.Repeat([]float64{0.1}, 9), 1.4), want: 3,
		},
		{
			name: "forgets a peak after a second",
			now:  8,
			used: append([]float64{1.4}, slices.Repeat([]float64{0.1}, 19)...),
			want: 1,
		},
		{
			name: "keeps all while they are in use", now: 8,
			used: slices.Repeat([]float64{0.1, 0.1, 0.1, 6}, 20), want: 8,
		},
		{name: "has never more than there are", now: 8, used: slices.Repeat([]float64{7.9}, 30), want: 8},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := &processors{most: 8, now: test.now}
			got := 0
			for _, used := range test.used {
				got = p.next(used, test.goroutines, often)
			}
			if got != test.want {
				t.Errorf("want %d processors, got %d", test.want, got)
			}
		})
	}
}

func TestMemory(t *testing.T) {
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
			m, at := &memory{}, time.Now()
			var allocated uint64
			percent, gives := 0, 0
			for _, h := range test.seconds {
				at = at.Add(time.Second)
				allocated += h.allocated
				h.allocated = allocated
				var give bool
				if percent, give = m.next(h, at, time.Second); give {
					gives++
				}
			}
			if percent != test.percent || gives != test.gives {
				t.Errorf("want %d%% and %d returns, got %d%% and %d", test.percent, test.gives, percent, gives)
			}
		})
	}
}

// TestRun has the runtime follow a load that comes and goes, and left as it was in the end.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		loaded := func() time.Duration { // how much of the load, from second 10 to 20, is over
			return min(max(time.Since(began)-10*time.Second, 0), 10*time.Second)
		}
		var most, percent, unmapped atomic.Int64
		most.Store(4)
		percent.Store(standardPercent)
		g := &governor{
			processors: &processors{most: 4, now: 4},
			memory:     &memory{},
			used:       func() (time.Duration, bool) { return loaded() * 3, true },
			goroutines: func() int { return 300 },
			heap: func() heap {
				allocated := uint64(loaded().Seconds() * 100 * mega)
				return heap{live: 10 * mega, allocated: allocated, unused: allocated % (50 * mega)}
			},
			setPercent: func(n int) { percent.Store(int64(n)) },
			setMost:    func(n int) { most.Store(int64(n)) },
			give:       func() {},
			unmap:      func() { unmapped.Add(1) },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.run(ctx)
		}()
		see := func(at time.Duration, wantMost, wantPercent int64) {
			t.Helper()
			time.Sleep(time.Until(began.Add(at)))
			synctest.Wait()
			if most.Load() != wantMost || percent.Load() != wantPercent {
				t.Errorf(
					"after %s: want %d processors and %d%%, got %d and %d%%",
					at,
					wantMost,
					wantPercent,
					most.Load(),
					percent.Load(),
				)
			}
		}
		see(5*time.Second, 1, standardPercent)
		if n := unmapped.Load(); n != 1 {
			t.Errorf("after the start: want the program unmapped once, got %d times", n)
		}
		see(11*time.Second, 4, standardPercent)
		see(15*time.Second, 4, 540)
		see(25*time.Second, 1, standardPercent)
		see(50*time.Second, 1, standardPercent)
		if n := unmapped.Load(); n != 2 {
			t.Errorf("after the load: want the program unmapped once more, got %d times in all", n)
		}
		cancel()
		<-done
		if most.Load() != 4 || percent.Load() != standardPercent {
			t.Errorf("in the end: want the runtime as it was, got %d processors and %d%%", most.Load(), percent.Load())
		}
	})
}

// TestReads looks at this very process.
func TestReads(t *testing.T) {
	t.Parallel()
	read := newHeapReader()
	before := read()
	kept := make([]byte, 8*mega)
	after := read()
	if len(kept) == 0 || after.allocated-before.allocated < 8*mega {
		t.Errorf("allocated 8 MB, and was told of %d bytes", after.allocated-before.allocated)
	}
	if after.unused == 0 && after.live == 0 {
		t.Error("there is no memory at all")
	}
}

func TestLeavesTheEnvironmentItsWill(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2")
	t.Setenv("GOGC", "100")
	if newProcessors() != nil || newMemory() != nil {
		t.Error("decides although the environment has decided")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Run(t.Context()) // has nothing to do
	}()
	<-done
}
