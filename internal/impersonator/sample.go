package impersonator

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

const (
	// Of each kind of message that clients can cause, samplesPerPeriod are logged in each samplePeriod. The others are
	// counted, and their number is logged at the end of the period.
	samplePeriod     = 10 * time.Second
	samplesPerPeriod = 5
)

// sampler logs one message that clients can cause as often as they like.
type sampler struct {
	message string
	period  time.Duration
	total   atomic.Int64 // logged or not

	mu      sync.Mutex
	began   time.Time // of the period
	logged  int       // in the period
	dropped int       // in the period
	timer   *time.Timer
}

func newSampler(message string) *sampler { return &sampler{message: message, period: samplePeriod} }

// info logs the message unless it was logged too often.
func (s *sampler) info(logger klog.Logger, keysAndValues ...any) {
	s.total.Add(1)
	if s.passes(logger) {
		logger.Info(s.message, keysAndValues...)
	}
}

func (s *sampler) passes(logger klog.Logger) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.dropped == 0 && now.Sub(s.began) >= s.period {
		s.began, s.logged = now, 0
	}
	if s.logged < samplesPerPeriod {
		s.logged++
		return true
	}
	s.dropped++
	if s.dropped == 1 {
		s.timer = time.AfterFunc(s.period-now.Sub(s.began), func() { s.summarize(logger) })
	}
	return false
}

func (s *sampler) summarize(logger klog.Logger) {
	s.mu.Lock()
	dropped := s.dropped
	s.dropped, s.began = 0, time.Time{}
	s.mu.Unlock()
	if dropped > 0 {
		logger.Info("Left out log lines", "message", s.message, "count", dropped)
	}
}

// stop logs at once how many messages were left out. It is for the end of the proxy.
func (s *sampler) stop(logger klog.Logger) {
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.summarize(logger)
}
