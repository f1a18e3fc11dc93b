package authenticators

import "time"

const (
	// ProbeEvery is the time between probes while the other side answers.
	ProbeEvery = 2 * time.Minute
	// ProbeLate is the longest time between probes while it does not.
	ProbeLate = 30 * time.Second

	probeSoon = time.Second // after a first failure; doubled after each further one
)

// Pace says when to probe next: now and then while the other side answers, soon when it does not, and less often the
// longer it does not.
type Pace struct {
	at       time.Time
	failures int
}

// Due is true when it is time to probe.
func (p Pace) Due(now time.Time) bool { return !now.Before(p.at) }

// Wait is how long it is until then.
func (p Pace) Wait(now time.Time) time.Duration { return max(p.at.Sub(now), 0) + time.Millisecond }

// After returns the pace after a probe that ended now.
func (p Pace) After(succeeded bool, now time.Time) Pace {
	if succeeded {
		return Pace{at: now.Add(ProbeEvery)}
	}
	return Pace{at: now.Add(min(probeSoon<<min(p.failures, 10), ProbeLate)), failures: p.failures + 1}
}
