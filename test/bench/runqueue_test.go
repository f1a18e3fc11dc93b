package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestRunQueue(t *testing.T) {
	t.Parallel()
	if _, err := readRunQueue(0); err == nil || !strings.Contains(err.Error(), "no schedstat") {
		t.Errorf("want a process that is not there told, got %v", err)
	}
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skipf("this kernel does not tell how long a process waits for a processor: %v", err)
	}
	got, err := readRunQueue(os.Getpid())
	if err != nil || got.turns == 0 {
		t.Errorf("want this process to have run, got %+v and %v", got, err)
	}
	for queue, want := range map[runQueue]time.Duration{
		{}: 0,
		(runQueue{waited: 30 * time.Second, turns: 40}).minus(runQueue{10 * time.Second, 20}): time.Second,
	} {
		if got := queue.perTurn(); got != want {
			t.Errorf("%+v: want %v a turn, got %v", queue, want, got)
		}
	}
}
