package governor

import "time"

const (
	// often is the time between two looks at the use of processors, and seldom the same when there is nothing to do.
	often, seldom = 100 * time.Millisecond, 500 * time.Millisecond
	// period is the time between two looks at memory. The number of processors falls only after as long.
	period = time.Second

	// manyGoroutines are those of about a hundred watches, beside the agent's own. One event wakes all of them at once, and is over
	// before the next look.
	manyGoroutines = 600

	// lateAfter is from when on a goroutine waits for a processor longer than it should: another goroutine, such as one that
	// decodes a large header, does not let go of the only one. A look is a late one when there were lateGoroutines since the
	// last. Go notes one wait in eight, so they stand for about sixteen. After lateLooks such looks more than looks at which
	// there were none, there are to be twice as many processors as now, for lateFor.
	lateAfter      = 2 * time.Millisecond
	lateGoroutines = 2
	lateLooks      = 3
	lateFor        = time.Minute

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

// processors decides how many processors to use.
type processors struct {
	most    int
	now     int
	peak    float64 // of the use in this period, in processors
	elapsed time.Duration

	late  int           // late looks, less those at which no goroutine was late
	least int           // as many are used for as long as hold, because goroutines were late
	hold  time.Duration // what is left of that
}

// next returns how many processors to use, after a time in which used of them were busy on average, with as many
// goroutines, and late as newLateReader counts it.
func (p *processors) next(used float64, goroutines, late int, took time.Duration) int {
	p.peak = max(p.peak, used)
	p.elapsed += took
	p.countLate(late, took)
	switch {
	case used > 0.7*float64(p.now), goroutines > manyGoroutines:
		// All of them at once: what comes may be a flood of work, and one step at a time would be late for it.
		p.now = p.most
	case p.now < p.least:
		p.now = p.least
	case p.elapsed < period:
		return p.now
	default:
		// Half of what is left stays free for what comes until the next look.
		p.now = max(p.least, min(p.now, max(1, int(p.peak/0.5+0.999))))
	}
	p.peak, p.elapsed = 0, 0
	return p.now
}

// countLate sees to it that there are more processors when goroutines have to wait for those in use, although these
// are not busy on average. When all are in use, it is only the load.
func (p *processors) countLate(late int, took time.Duration) {
	if p.hold -= took; p.hold <= 0 {
		p.hold, p.least = 0, 0
	}
	switch {
	case p.now == p.most:
		p.late = 0
	case late == 0:
		p.late = max(0, p.late-1)
	case late >= lateGoroutines:
		if p.late++; p.late == lateLooks {
			p.late, p.least, p.hold = 0, min(p.most, 2*p.now), lateFor
		}
	}
}

// heap is what there is of memory.
type heap struct {
	allocated uint64 // bytes, since the process began
	live      uint64 // found by the last collection
	scanned   uint64 // stacks and globals, which count for when to collect
	unused    uint64 // garbage, and free memory that was not returned
}

// memory decides how much garbage may gather, and when memory goes back to the system.
type memory struct {
	last     heap
	busy     bool // the last period was
	quiet    int  // periods in a row, until now
	returned time.Time
}

// next returns the percentage for debug.SetGCPercent, and whether to return memory to the system now.
func (m *memory) next(now heap, at time.Time, took time.Duration) (percent int, give bool) {
	rate := float64(now.allocated-m.last.allocated) / max(took.Seconds(), 0.001)
	wasBusy := m.busy
	m.last, m.busy = now, rate >= busyRate
	if m.quiet++; rate >= quietRate {
		m.quiet = 0
	}
	switch {
	case m.busy && wasBusy:
		return busyPercent(now), false
	case rate < quietRate && now.unused >= max(worthReturning, now.live/4) && at.Sub(m.returned) >= returnPause:
		m.returned = at
		return standardPercent, true
	}
	return standardPercent, false
}

// settled is true once when a start or a load is over.
func (m *memory) settled() bool { return m.quiet == settledAfter }

// busyPercent makes the next collection come when the heap has grown to busyHeap.
func busyPercent(h heap) int {
	if h.live == 0 || h.live >= busyHeap/2 {
		return standardPercent
	}
	percent := 100 * (busyHeap - h.live) / (h.live + h.scanned)
	return int(min(max(percent, standardPercent), maxPercent))
}
