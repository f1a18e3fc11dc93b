package logs

import (
	"context"
	"log/slog"
	"time"
)

// passing is how long a problem that is tried again is a warning only: two replicas that start at once get in each
// other's way, and a request may fail once.
const passing = 5 * time.Second

// Problem is what keeps something from being done. It is logged when it begins, changes or gets worse, not at each try.
// The zero value is ready; a Problem is for one goroutine at a time.
type Problem struct {
	since  time.Time // of the first try that failed; zero when none has
	logged string
	level  slog.Level // of what was logged
}

// Log logs message, with text as the problem, unless that was logged last, at level or worse. slog.LevelError is for
// what keeps users out until somebody fixes it.
func (p *Problem) Log(ctx context.Context, level slog.Level, message, text string) {
	if p.logged == text && p.level >= level {
		return
	}
	p.logged, p.level = text, level
	at(ctx, level, message, []any{"problem", text})
}

// LogRetried is Log for what is tried again. In the first five seconds of failures in a row it is a warning at most; now
// is the time of this one.
func (p *Problem) LogRetried(ctx context.Context, now time.Time, level slog.Level, message, text string) {
	if p.since.IsZero() {
		p.since = now
	}
	if now.Sub(p.since) < passing {
		level = min(level, slog.LevelWarn)
	}
	p.Log(ctx, level, message, text)
}

// Clear forgets the problem: a try has succeeded.
func (p *Problem) Clear() {
	*p = Problem{}
}
