package logs

import (
	"log/slog"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
)

func TestProblem(t *testing.T) {
	t.Parallel()
	ctx, lines := logTo(t, 0, func(logger logr.Logger) logr.Logger { return logger })
	start := time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC)
	var p Problem
	retry := func(after time.Duration, text string) {
		p.LogRetried(ctx, start.Add(after), slog.LevelError, "Failed: "+text, text)
	}
	retry(0, "a conflict")
	retry(time.Second, "a conflict")
	retry(2*time.Second, "forbidden")
	retry(4999*time.Millisecond, "forbidden")
	retry(5*time.Second, "forbidden")
	retry(6*time.Second, "forbidden")
	p.LogRetried(ctx, start.Add(7*time.Second), slog.LevelWarn, "Failed: forbidden", "forbidden")
	retry(8*time.Second, "a conflict")
	p.Clear()
	retry(9*time.Second, "a conflict")
	p.Log(ctx, slog.LevelError, "Failed: for others to fix", "for others to fix")
	p.Log(ctx, slog.LevelError, "Failed: for others to fix", "for others to fix")
	want := []string{
		"WARN Failed: a conflict", "WARN Failed: forbidden",
		"ERROR Failed: forbidden", "ERROR Failed: a conflict",
		"WARN Failed: a conflict", "ERROR Failed: for others to fix",
	}
	if diff := cmp.Diff(want, lines()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
