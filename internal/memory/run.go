// Package memory fits how the agent uses memory to what it has to do.
//
//   - Garbage. With little live memory, Go collects garbage after a few megabytes: many times a second under load.
//     Meanwhile the heap may grow to busyHeap before it is collected. Where more than half of that is live,
//     nothing changes. The limit on memory (GOMEMLIMIT, or nine tenths of the container's) stays in force. Without
//     this, a get takes 15% more CPU, and a list by one client half as much again (docs/adr/0031).
//   - What is not in use goes back to the system as soon as it gets quiet. Go itself would keep about as much as it has
//     live. The pages of the program that only its start or a load has needed go as well. Together that is almost half
//     of the resident memory.
//
// GOGC in the environment decides for itself: then nothing is done.
package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Run fits the use of memory to the load until ctx ends, and then leaves it as Go has it by itself.
func Run(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	process{
		heap:       newHeapReader(),
		setPercent: func(percent int) { debug.SetGCPercent(percent) },
		give:       debug.FreeOSMemory,
		unmap:      unmapProgram,
	}.run(ctx)
}

// process is what Run observes and sets.
type process struct {
	heap       func() heap
	setPercent func(int)
	give       func()
	unmap      func()
}

func (p process) run(ctx context.Context) {
	percent, last := standardPercent, time.Now()
	load := &load{last: p.heap()}
	defer p.setPercent(standardPercent)
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		at := time.Now()
		next, give := load.next(p.heap(), at, at.Sub(last))
		last = at
		if differs(next, percent) {
			percent = next
			p.setPercent(percent)
		}
		if give {
			p.give()
		}
		if load.settled() {
			p.unmap()
		}
	}
}

// differs is true when a new percentage is worth stopping all goroutines for a moment.
func differs(next, percent int) bool {
	return next != percent && (next == standardPercent || next < percent*3/4 || next > percent*4/3)
}

// newHeapReader returns a function that reads the heap's statistics.
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
