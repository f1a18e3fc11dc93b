// Package memory adapts the agent's use of memory to its load.
//
//   - Garbage. With little live memory, Go collects garbage after a few megabytes: many times a second under load. So
//     under load, the heap may grow to busyHeap before it is collected. If more than half of that is live, nothing
//     changes. The memory limit (GOMEMLIMIT, or nine tenths of the container's) still applies. Without this, a get
//     takes 15 % more CPU, and a list by one client half as much again (docs/adr/0031).
//   - Unused memory is returned to the system as soon as the load ends. Go itself would keep about as much as is live.
//     Pages of the program that are only needed at the start or under load are dropped, too. Together that is almost
//     half of the resident memory.
//
// If GOGC is set in the environment, the package does nothing.
package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Run adapts the use of memory to the load until ctx ends, and then restores Go's defaults.
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

// process is what Run reads and sets.
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

// differs is true when a new percentage is worth a short stop of all goroutines.
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
