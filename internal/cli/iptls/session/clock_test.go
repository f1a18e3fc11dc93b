package session

import (
	"net/http"
	"testing"
	"time"
)

func TestServerClock(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	clock := &serverClock{now: func() time.Time { return now }}
	if !clock.at(now).IsZero() {
		t.Error("it knows the time before any answer")
	}
	clock.read("no date")
	clock.read(now.Add(time.Hour).Format(http.TimeFormat))
	if got := clock.at(now.Add(time.Minute)); !got.Equal(now.Add(time.Hour + time.Minute)) {
		t.Errorf("got %s", got)
	}
}
