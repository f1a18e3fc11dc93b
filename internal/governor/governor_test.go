package governor

import (
	"context"
	"runtime"
	"slices"
	"sync"
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
		late       []int // goroutines in each tenth of a second, 0 in the rest
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
		{
			name: "uses one more when goroutines wait for the only one",
			now:  1, used: slices.Repeat([]float64{0.3}, 3), late: []int{2, 9, 3}, want: 2,
		},
		{
			name: "uses more and more when goroutines wait all the same",
			now:  1, used: slices.Repeat([]float64{0.3}, 6), late: []int{5, 9, 7, 8, 8, 8}, want: 4,
		},
		{
			name: "does not mind one goroutine that waits",
			now:  1, used: slices.Repeat([]float64{0.3}, 30), late: slices.Repeat([]int{1}, 30), want: 1,
		},
		{
			name: "does not mind goroutines that wait now and then",
			now:  1, used: slices.Repeat([]float64{0.3}, 30), late: slices.Repeat([]int{90, 0}, 15), want: 1,
		},
		{
			name: "keeps more for a while after goroutines had to wait",
			now:  1, used: slices.Repeat([]float64{0.3}, 600), late: []int{5, 5, 5}, want: 2,
		},
		{
			name: "falls when no goroutine had to wait for long",
			now:  1, used: slices.Repeat([]float64{0.3}, 620), late: []int{5, 5, 5}, want: 1,
		},
		{
			name: "does not keep all because goroutines waited when all were in use",
			now:  8, used: slices.Repeat([]float64{0.3}, 20), late: slices.Repeat([]int{50}, 10), want: 1,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := &processors{most: 8, now: test.now}
			got := 0
			for i, used := range test.used {
				late := 0
				if i < len(test.late) {
					late = test.late[i]
				}
				got = p.next(used, test.goroutines, late, often)
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
			late:       func() int { return 0 },
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

// TestLateReader has goroutines wait for the only processor.
//
//nolint:paralleltest // it changes the number of processors
func TestLateReader(t *testing.T) {
	late := newLateReader()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const waiting, noted = 400, 10 // one in eight is noted
	var done sync.WaitGroup
	for range waiting {
		done.Go(func() {})
	}
	for began := time.Now(); time.Since(began) < 2*lateAfter; { // and lets go of it for none of them
		continue
	}
	done.Wait()
	if got := late(); got < noted || got > waiting {
		t.Errorf("want about %d of %d goroutines late, got %d", waiting/8, waiting, got)
	}
}
