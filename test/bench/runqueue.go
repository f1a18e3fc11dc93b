package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// runQueue is how long the threads of a process waited for a processor while they could have run, and how often they ran.
type runQueue struct {
	waited time.Duration
	turns  int64
}

// readRunQueue returns that of a process so far. Threads that have ended are not in it; Go keeps its own.
func readRunQueue(pid int) (runQueue, error) {
	paths, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "schedstat"))
	if err != nil || len(paths) == 0 {
		return runQueue{}, fmt.Errorf("reading how long process %d waited for a processor: it has no schedstat", pid)
	}
	var all runQueue
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue // a thread that has ended meanwhile
		}
		if err != nil {
			return runQueue{}, fmt.Errorf("reading how long a thread waited for a processor: %w", err)
		}
		var ran, waited, turns int64
		if _, err := fmt.Fscan(strings.NewReader(string(content)), &ran, &waited, &turns); err != nil {
			return runQueue{}, fmt.Errorf("reading %q: %w", path, err)
		}
		all.waited += time.Duration(waited)
		all.turns += turns
	}
	return all, nil
}

// perTurn is the mean time until a thread that could run got a processor.
func (q runQueue) perTurn() time.Duration {
	if q.turns <= 0 {
		return 0
	}
	return q.waited / time.Duration(q.turns)
}

func (q runQueue) minus(before runQueue) runQueue {
	return runQueue{q.waited - before.waited, q.turns - before.turns}
}
