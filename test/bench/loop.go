package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// sample is what one turn gave.
type sample struct {
	requests  int
	elapsed   time.Duration
	bytes     int64 // of answers, as they were sent
	latencies []time.Duration
	cpu       processorTimes
}

// add joins two samples of one turn.
func (s *sample) add(other sample) {
	s.requests += other.requests
	s.elapsed += other.elapsed
	s.bytes += other.bytes
	s.latencies = append(s.latencies, other.latencies...)
	s.cpu.proxy += other.cpu.proxy
	s.cpu.other += other.cpu.other
	s.cpu.apiServer += other.cpu.apiServer
}

func (s *sample) rate() float64 { return float64(s.requests) / s.elapsed.Seconds() }

// each is a share of one request.
func (s *sample) each(d time.Duration) time.Duration { return d / time.Duration(max(1, s.requests)) }

// loop is a closed loop: every worker waits for its answer before it asks again.
type loop struct {
	workers int
	// most is how many requests are made at most; zero for as many as fit into the time.
	most int
	// whole is a number of requests that belong together: no turn ends in the middle of them. Zero for none.
	whole int
	// call makes one request, the i-th of all, and returns the length of its answer.
	call func(ctx context.Context, worker, i int) (int64, error)
}

// run goes on for d, and returns at the first error.
func (l loop) run(ctx context.Context, w *world, d time.Duration) (sample, error) {
	before, err := w.processorTimes()
	if err != nil {
		return sample{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, end atomic.Int64 // end is the first request that is not made, zero as long as none is known
	results := make([]sample, l.workers)
	began := time.Now()
	var group sync.WaitGroup
	for worker := range l.workers {
		group.Go(func() {
			mine := &results[worker]
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if late := time.Since(began) >= d; late && l.mayEnd(i) {
					end.CompareAndSwap(0, int64(i))
				}
				if last := int(end.Load()); last > 0 && i >= last || l.most > 0 && i >= l.most {
					return
				}
				asked := time.Now()
				n, err := l.call(ctx, worker, i)
				if err != nil {
					cancel(err)
					return
				}
				mine.latencies = append(mine.latencies, time.Since(asked))
				mine.bytes += n
				mine.requests++
			}
		})
	}
	group.Wait()
	all := sample{elapsed: time.Since(began)}
	if ctx.Err() != nil {
		return all, context.Cause(ctx)
	}
	after, err := w.processorTimes()
	if err != nil {
		return all, err
	}
	all.cpu = after.minus(before)
	for _, result := range results {
		all.requests += result.requests
		all.bytes += result.bytes
		all.latencies = append(all.latencies, result.latencies...)
	}
	return all, nil
}

// mayEnd says whether a turn may end before the i-th request. Each worker makes at least one.
func (l loop) mayEnd(i int) bool { return i >= l.workers && (l.whole == 0 || i%l.whole == 0) }

// quantile returns the value below which a share q of all lies, zero without any.
func quantile[T int64 | float64 | time.Duration](values []T, q float64) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// median returns the middle value, or the mean of the two in the middle.
func median[T int64 | float64 | time.Duration](values []T) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
