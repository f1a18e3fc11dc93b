package governor

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Run governs the runtime until ctx ends, and then leaves it as Go has it by itself. While it runs,
// runtime.GOMAXPROCS(0) tells what is used at the moment, and not what there is.
func Run(ctx context.Context) {
	g := &governor{
		processors: newProcessors(),
		memory:     newMemory(),
		used:       processorTime,
		goroutines: runtime.NumGoroutine,
		late:       newLateReader(),
		heap:       newHeapReader(),
		setPercent: func(percent int) { debug.SetGCPercent(percent) },
		setMost:    func(n int) { runtime.GOMAXPROCS(n) },
		give:       debug.FreeOSMemory,
		unmap:      unmapProgram,
	}
	if g.processors != nil {
		calmMonitor()
	}
	g.run(ctx)
}

// newProcessors returns nil when there is nothing to decide.
func newProcessors() *processors {
	most := runtime.GOMAXPROCS(0)
	if _, ok := processorTime(); !ok || most == 1 || os.Getenv("GOMAXPROCS") != "" {
		return nil
	}
	return &processors{most: most, now: most}
}

func newMemory() *memory {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	return &memory{}
}

// governor looks at what the process uses, and sets what the runtime may use.
type governor struct {
	processors *processors // nil: left alone
	memory     *memory     // nil: left alone
	used       func() (time.Duration, bool)
	goroutines func() int
	late       func() int // see newLateReader
	heap       func() heap
	setPercent func(int)
	setMost    func(int)
	give       func()
	unmap      func()
}

func (g *governor) run(ctx context.Context) {
	if g.processors == nil && g.memory == nil {
		return
	}
	var (
		now, percent = 0, standardPercent
		last         = time.Now()
		lastMemory   = last
		spent, _     = g.used()
		pause        = often
	)
	if g.processors != nil {
		now = g.processors.now
		defer g.setMost(g.processors.most)
	}
	if g.memory != nil {
		g.memory.last = g.heap()
		defer g.setPercent(standardPercent)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		at := time.Now()
		took := at.Sub(last)
		spentNow, _ := g.used()
		used := float64(spentNow-spent) / float64(max(took, 1))
		last, spent = at, spentNow
		if g.processors != nil {
			if next := g.processors.next(used, g.goroutines(), g.late(), took); next != now {
				now = next
				g.setMost(now)
			}
		}
		if took := at.Sub(lastMemory); g.memory != nil && took >= period {
			next, give := g.memory.next(g.heap(), at, took)
			if lastMemory = at; differs(next, percent) {
				percent = next
				g.setPercent(percent)
			}
			if give {
				g.give()
			}
			if g.memory.settled() {
				g.unmap()
			}
		}
		pause = often
		if used < 0.02 {
			pause = seldom
		}
		timer.Reset(pause)
	}
}

// differs is true when it is worth to stop all goroutines for a moment and set the percentage anew.
func differs(next, percent int) bool {
	return next != percent && (next == standardPercent || next < percent*3/4 || next > percent*4/3)
}

// newHeapReader returns a function that reads what there is of memory.
func newHeapReader() func() heap {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/gc/scan/stack:bytes"},
		{Name: "/gc/scan/globals:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	return func() heap {
		metrics.Read(samples)
		value := func(i int) uint64 { return samples[i].Value.Uint64() }
		h := heap{allocated: value(0), live: value(1), scanned: value(2) + value(3), unused: value(5)}
		if objects := value(4); objects > h.live {
			h.unused += objects - h.live
		}
		return h
	}
}

// newLateReader returns a function that counts how often a goroutine has waited for a processor for lateAfter or longer
// since its last call, as far as Go notes it: one time in eight.
func newLateReader() func() int {
	samples := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	last := uint64(0)
	read := func() int {
		metrics.Read(samples)
		waits := samples[0].Value.Float64Histogram()
		all := uint64(0)
		for i, n := range waits.Counts {
			if waits.Buckets[i] >= lateAfter.Seconds() {
				all += n
			}
		}
		since := all - last
		last = all
		return int(since)
	}
	read()
	return read
}
