package memory

import "time"

const (
	// period is the time between two observations.
	period = time.Second
	// busyHeap is how far the heap may grow under load before it is collected.
	busyHeap = 64 << 20
	// busyRate and quietRate are the allocation rates, in bytes per second, from which on there is load, and below
	// which it is quiet.
	busyRate, quietRate = 16 << 20, 2 << 20
	// worthReturning is the minimum amount of unused memory to return.
	worthReturning = 6 << 20
	// returnPause is the minimum time between two returns. Each costs a collection.
	returnPause = 10 * time.Second
	// settledAfter is how many consecutive quiet periods end a start or a load.
	settledAfter = 3

	standardPercent = 100
	// maxPercent limits the percentage when very little memory is live.
	maxPercent = 2000
)

// heap has statistics of the heap.
type heap struct {
	allocated uint64 // since the start of the process, in bytes
	live      uint64 // at the last collection
	scanned   uint64 // stacks and globals, which count toward the next collection
	unused    uint64 // garbage, and free memory that was not returned
}

// load decides how far the heap may grow, and when memory is returned to the system.
type load struct {
	last     heap
	busy     bool // in the last period
	quiet    int  // consecutive quiet periods
	returned time.Time
}

// next returns the percentage for debug.SetGCPercent, and whether to return memory to the system now.
func (l *load) next(now heap, at time.Time, took time.Duration) (percent int, give bool) {
	rate := float64(now.allocated-l.last.allocated) / max(took.Seconds(), 0.001)
	wasBusy := l.busy
	l.last, l.busy = now, rate >= busyRate
	if l.quiet++; rate >= quietRate {
		l.quiet = 0
	}
	switch {
	case l.busy && wasBusy:
		return busyPercent(now), false
	case rate < quietRate && now.unused >= max(worthReturning, now.live/4) && at.Sub(l.returned) >= returnPause:
		l.returned = at
		return standardPercent, true
	}
	return standardPercent, false
}

// settled is true once when a start or a load is over.
func (l *load) settled() bool { return l.quiet == settledAfter }

// busyPercent returns the percentage with which the next collection starts at a heap of busyHeap.
func busyPercent(h heap) int {
	if h.live == 0 || h.live >= busyHeap/2 {
		return standardPercent
	}
	percent := 100 * (busyHeap - h.live) / (h.live + h.scanned)
	return int(min(max(percent, standardPercent), maxPercent))
}
