package authenticators

import "time"

const (
	// ProbeEvery is the time between probes while they succeed.
	ProbeEvery = 2 * time.Minute
	// ProbeLate is the maximum time between probes while they fail.
	ProbeLate = 30 * time.Second

	probeSoon = time.Second // after the first failure; doubled after each further one
)

// Pace says when to probe next: periodically while probes succeed, with exponential backoff while they fail.
type Pace struct {
	at       time.Time
	failures int
}

// Due reports whether it is time to probe.
func (p Pace) Due(now time.Time) bool { return !now.Before(p.at) }

// Wait returns how long to wait until the next probe.
func (p Pace) Wait(now time.Time) time.Duration { return max(p.at.Sub(now), 0) + time.Millisecond }

// After returns the pace after a probe at now.
func (p Pace) After(succeeded bool, now time.Time) Pace {
	if succeeded {
		return Pace{at: now.Add(ProbeEvery)}
	}
	return Pace{at: now.Add(min(probeSoon<<min(p.failures, 10), ProbeLate)), failures: p.failures + 1}
}
