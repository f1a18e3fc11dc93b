package proxy

import (
	"runtime/metrics"
	"sync/atomic"
	"time"
)

const (
	// maxArriving is how many requests may have come that nothing was decided about yet, before clients are not read any
	// more for a moment. Each takes some 10 KiB that no share knows, and each has to be reached before it can be refused.
	maxArriving = 1000
	// arrivalPause is the time between two looks at them.
	arrivalPause = 5 * time.Millisecond
	// longestArrivalPause is how long one read waits for that at most.
	longestArrivalPause = time.Second

	runnableMetric = "/sched/goroutines/runnable:goroutines"
)

// arrivals are requests that net/http has made of what clients sent, and about which nothing was decided yet: neither do
// they pass the gate, nor do they wait there, nor are they refused. A client may have a hundred of them on each
// connection at once, in a few hundred bytes. What is not read yet stays with the client.
type arrivals struct {
	undecided atomic.Int64
	// runnable are goroutines that wait for a processor, most of which are such requests when there are many. They count
	// for strangers only: watches that get an event are many as well.
	runnable atomic.Int64
	looked   atomic.Int64 // when, in Unix nanoseconds
	look     func() int64
}

// runnableGoroutines returns how many goroutines could run and do not.
func runnableGoroutines() int64 {
	sample := []metrics.Sample{{Name: runnableMetric}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int64(sample[0].Value.Uint64()) //nolint:gosec // a number of goroutines
}

// areMany is true while so many requests have come that the client should not send more.
func (a *arrivals) areMany(ofStranger bool) bool {
	if !ofStranger {
		return a.undecided.Load() > maxArriving
	}
	now, last := time.Now().UnixNano(), a.looked.Load()
	if now-last >= int64(arrivalPause) && a.looked.CompareAndSwap(last, now) {
		a.runnable.Store(a.look())
	}
	return a.undecided.Load()+a.runnable.Load() > maxArriving
}

// pause is called before each read of a connection.
func (a *arrivals) pause(c *clientConn) {
	if !c.certified.Load() || c.unused.upgraded.Load() {
		return
	}
	var end time.Time
	for a.areMany(c.user.Load() == nil) && !isClosed(c.gone) {
		switch now := time.Now(); {
		case end.IsZero():
			end = now.Add(longestArrivalPause)
		case !now.Before(end):
			return
		}
		c.waitOrGone(arrivalPause)
	}
}

// arrive counts a request from here on until something is decided about it.
func (s *requestState) arrive(c *clientConn) {
	if c != nil {
		s.arriving = &c.all.arrivals
		s.arriving.undecided.Add(1)
	}
}

// decided is called when the request is admitted or refused. A second call does nothing.
func (s *requestState) decided() {
	if s.arriving != nil {
		s.arriving.undecided.Add(-1)
		s.arriving = nil
	}
}
