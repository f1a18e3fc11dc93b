package logs

import (
	"context"
	"log/slog"
	"time"
)

// passing is how long a problem that is retried is only a warning: two replicas that start at once conflict with each
// other, and a request may fail once.
const passing = 5 * time.Second

// Problem logs a problem when it begins, changes or gets worse, not at each retry. The zero value is ready to use. It
// is not safe for concurrent use.
type Problem struct {
	since  time.Time // of the first failure; zero for none
	logged string
	level  slog.Level // of the last line
}

// Log logs message with text as the problem, unless the last line had that text, at level or worse. slog.LevelError is
// for problems that prevent users from logging in until they are fixed.
func (p *Problem) Log(ctx context.Context, level slog.Level, message, text string) {
	if p.logged == text && p.level >= level {
		return
	}
	p.logged, p.level = text, level
	at(ctx, level, message, []any{"problem", text})
}

// LogRetried is Log for operations that are retried. In the first five seconds of consecutive failures it logs at most
// a warning. now is the time of this failure.
func (p *Problem) LogRetried(ctx context.Context, now time.Time, level slog.Level, message, text string) {
	if p.since.IsZero() {
		p.since = now
	}
	if now.Sub(p.since) < passing {
		level = min(level, slog.LevelWarn)
	}
	p.Log(ctx, level, message, text)
}

// Clear resets the problem after a success.
func (p *Problem) Clear() {
	*p = Problem{}
}
