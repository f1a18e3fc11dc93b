package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// recovery is how long the agent has after an attack until it holds nothing of it.
	recovery = 10 * time.Second
	// restless is by how much the agent's goroutines differ beside honest users, who come and go.
	restless = 50
	// afterwards is how long honest users go on after an attack.
	afterwards = 2 * time.Second
)

// goroutines returns how many the agent has, from its profiles.
func (w *world) goroutines(ctx context.Context) (int, error) {
	address := "http://" + w.agent.MetricsAddress() + "/debug/pprof/goroutine?debug=1"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("reading the agent's goroutines: %w", err)
	}
	defer res.Body.Close() //nolint:errcheck // it was read
	var n int
	if _, err := fmt.Fscanf(res.Body, "goroutine profile: total %d", &n); err != nil {
		return 0, fmt.Errorf("reading the agent's goroutines: %w", err)
	}
	return n, nil
}

// recover waits until the agent has about as many goroutines as before, and returns how many more it has.
func (w *world) recover(ctx context.Context, before int) (int, error) {
	for began := time.Now(); ; {
		n, err := w.goroutines(ctx)
		if err != nil {
			return 0, err
		}
		if n <= before+restless || time.Since(began) > recovery {
			return max(0, n-before), nil
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// queued returns how many bytes of clients' connections wait in the kernel. Where control groups are of version 2, these
// count as the agent's memory.
func queued(address string) (int64, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0, err
	}
	content, err := os.ReadFile("/proc/net/tcp")
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil // not on this system
	}
	if err != nil {
		return 0, err
	}
	suffix, listening := fmt.Sprintf(":%04X", number), "0A"
	var sum int64
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.HasSuffix(fields[1], suffix) || fields[3] == listening {
			continue
		}
		for both := range strings.SplitSeq(fields[4], ":") {
			n, err := strconv.ParseInt(both, 16, 64)
			if err != nil {
				return 0, fmt.Errorf("reading /proc/net/tcp: %w", err)
			}
			sum += n
		}
	}
	return sum, nil
}
