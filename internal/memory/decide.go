package memory

import "time"

const (
	// period is the time between two observations.
	period = time.Second
	// busyHeap is how far the heap may grow under load before it is collected.
	busyHeap = 64 << 20
	// busyRate and quietRate are how many bytes are allocated in a second under load, and when it is quiet.
	busyRate, quietRate = 16 << 20, 2 << 20
	// worthReturning is how much unused memory is returned at least.
	worthReturning = 6 << 20
	// returnPause is the shortest time between two returns. Each costs a collection.
	returnPause = 10 * time.Second
	// settledAfter is how many quiet periods in a row show that a start or a load is over.
	settledAfter = 3

	standardPercent = 100
	// maxPercent bounds how lazy the collector gets when next to nothing is live.
	maxPercent = 2000
)

// heap has the statistics of the heap.
type heap struct {
	allocated uint64 // bytes, since the process began
	live      uint64 // found by the last collection
	scanned   uint64 // stacks and globals, which count for when to collect
	unused    uint64 // garbage, and free memory that was not returned
}

// load decides how much garbage may gather, and when memory goes back to the system.
type load struct {
	last     heap
	busy     bool // the last period was
	quiet    int  // periods in a row, until now
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

// busyPercent makes the next collection come when the heap has grown to busyHeap.
func busyPercent(h heap) int {
	if h.live == 0 || h.live >= busyHeap/2 {
		return standardPercent
	}
	percent := 100 * (busyHeap - h.live) / (h.live + h.scanned)
	return int(min(max(percent, standardPercent), maxPercent))
}
