package logs

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

const (
	// SamplesPerPeriod is how many lines of one kind are logged in each SamplePeriod. The others are counted, and their
	// number is logged at the end of the period.
	SamplesPerPeriod = 5
	// SamplePeriod is the length of a period.
	SamplePeriod = 10 * time.Second
)

// leftOut is the message of a summary, with a message and the count of its omitted lines.
const leftOut = "Left out log lines"

// Sampler logs one message that clients can cause any number of times. Create it with NewSampler.
type Sampler struct {
	message string
	total   atomic.Int64
	samples samples
}

// NewSampler returns a Sampler for a message.
func NewSampler(message string) *Sampler { return &Sampler{message: message} }

// Info logs the message with these facts, unless it was logged too often.
func (s *Sampler) Info(logger logr.Logger, facts ...any) {
	s.total.Add(1)
	if s.samples.pass(s.summarize(logger)) {
		logger.Info(s.message, facts...)
	}
}

// Total returns the number of lines, logged or not.
func (s *Sampler) Total() int64 { return s.total.Load() }

// Stop logs the summary of omitted lines at once.
func (s *Sampler) Stop(logger logr.Logger) { s.samples.end(s.summarize(logger)) }

func (s *Sampler) summarize(logger logr.Logger) func(count int) {
	return func(count int) { logger.Info(leftOut, "message", s.message, "count", count) }
}

// samples decides which lines of one kind are logged. The zero value is ready to use.
type samples struct {
	mu      sync.Mutex
	began   time.Time // of the period
	logged  int       // in the period
	dropped int       // in the period
	timer   *time.Timer
}

// pass returns whether to log a line. If lines are omitted, summarize is called with their number at the end of the
// period.
func (s *samples) pass(summarize func(count int)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.dropped == 0 && now.Sub(s.began) >= SamplePeriod {
		s.began, s.logged = now, 0
	}
	if s.logged < SamplesPerPeriod {
		s.logged++
		return true
	}
	s.dropped++
	if s.dropped == 1 {
		s.timer = time.AfterFunc(SamplePeriod-now.Sub(s.began), func() { s.end(summarize) })
	}
	return false
}

func (s *samples) end(summarize func(count int)) {
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	dropped := s.dropped
	s.dropped, s.began = 0, time.Time{}
	s.mu.Unlock()
	if dropped > 0 {
		summarize(dropped)
	}
}
