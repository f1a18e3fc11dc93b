package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	pollInterval = 50 * time.Millisecond
	stopGrace    = 10 * time.Second
	tailLines    = 20
	tailBytes    = 16 << 10
)

// component is a program of the control plane. It can be started and stopped repeatedly, and is safe for concurrent
// use. No lock is held while it starts, so a program that waits for another one can be started first.
type component struct {
	name    string
	path    string
	args    []string
	env     []string // in addition to this process's
	dir     string
	logPath string
	ready   func(context.Context) error // returns nil once the program is ready
	guard   *guard

	mu     sync.Mutex
	run    *run // of the latest start; nil before the first
	closed bool // the cluster is stopped
}

// run is one run of a program.
type run struct {
	process *exec.Cmd
	ended   chan struct{} // closed after process has ended
}

func (r *run) running() bool {
	if r == nil {
		return false
	}
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// latest returns the latest run, or nil before the first.
func (c *component) latest() *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.run
}

// running reports whether the latest run has not ended.
func (c *component) running() bool { return c.latest().running() }

// start starts the program and waits until it is ready. It stops a program that does not become ready.
func (c *component) start(ctx context.Context, timeout time.Duration) error {
	started, offset, err := c.launch()
	if err != nil {
		return fmt.Errorf("starting %s: %w", c.name, err)
	}
	if err := c.waitReady(ctx, started, timeout); err != nil {
		stopErr := c.end(started, stopGrace)
		return fmt.Errorf("starting %s: %w", c.name, errors.Join(c.explain(err, offset), stopErr))
	}
	return nil
}

// launch starts the program. logOffset is the size of the log file before the start.
func (c *component) launch() (started *run, logOffset int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, 0, errStopped
	}
	if c.run.running() {
		return nil, 0, errors.New("it is running already")
	}
	log, err := os.OpenFile(c.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, err
	}
	defer log.Close() //nolint:errcheck // the program has its own copy
	if info, err := log.Stat(); err == nil {
		logOffset = info.Size()
	}
	process := exec.Command(c.path, c.args...) //nolint:noctx // stopped by stop, not by a context
	process.Dir = c.dir
	process.Env = append(programEnv(os.Environ()), c.env...)
	process.Stdout = log
	process.Stderr = log
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the guard kills the group
	if err := process.Start(); err != nil {
		return nil, 0, err
	}
	c.run = &run{process: process, ended: make(chan struct{})}
	guardErr := c.guard.add(process.Process) // before anyone can observe its end, which makes the guard forget it
	go func(ended chan struct{}) {
		_ = process.Wait() // ProcessState has the result
		c.guard.remove(process.Process)
		close(ended)
	}(c.run.ended)
	if guardErr != nil {
		return nil, 0, errors.Join(guardErr, c.end(c.run, stopGrace))
	}
	return c.run, logOffset, nil
}

// waitReady polls the program until it is ready, has ended, or timeout has passed.
func (c *component) waitReady(ctx context.Context, started *run, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error
	for {
		attempt, cancelAttempt := context.WithTimeout(ctx, 5*time.Second)
		err := c.ready(attempt)
		cancelAttempt()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err // its own error, not that of the canceled poll
		}
		select {
		case <-started.ended:
			return fmt.Errorf("it ended before it was ready: %s", started.process.ProcessState)
		case <-ctx.Done():
			if last == nil {
				last = err
			}
			return fmt.Errorf("waiting until it is ready: %w (last answer: %w)", context.Cause(ctx), last)
		case <-time.After(pollInterval):
		}
	}
}

// stop terminates the program, kills it after stopGrace, and returns after it has ended. It is not an error if the
// program is not running.
func (c *component) stop() error { return c.end(c.latest(), stopGrace) }

// close stops the program permanently: it cannot be started again.
func (c *component) close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	return c.stop()
}

// kill ends one run at once, as a crash would, and returns after it has ended.
func (c *component) kill(running *run) error {
	if !running.running() {
		return nil
	}
	if err := running.process.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", c.name, err)
	}
	<-running.ended
	return nil
}

// end is stop for one run. It kills the program after grace.
func (c *component) end(running *run, grace time.Duration) error {
	if !running.running() {
		return nil
	}
	if err := terminate(running.process.Process); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", c.name, err)
	}
	select {
	case <-running.ended:
		return nil
	case <-time.After(grace):
		return c.kill(running)
	}
}

// explain adds the end of the log, from offset on, to err.
func (c *component) explain(err error, offset int64) error {
	return fmt.Errorf("%w\nthe end of its log %q:\n%s", err, c.logPath, tail(c.logPath, offset))
}

// tail returns the last lines of a file from offset on, each indented.
func tail(path string, offset int64) string {
	file, err := os.Open(path)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	defer file.Close() //nolint:errcheck // only read
	if info, err := file.Stat(); err == nil {
		offset = max(offset, info.Size()-tailBytes)
	}
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return "  (" + err.Error() + ")"
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return "  (nothing)"
	}
	lines := strings.Split(string(data), "\n")
	lines = lines[max(0, len(lines)-tailLines):]
	return "  " + strings.Join(lines, "\n  ")
}

// programEnv removes the variables with which etcd and Kubernetes would let the caller's environment change a cluster.
func programEnv(environ []string) []string {
	var kept []string
	for _, variable := range environ {
		if strings.HasPrefix(variable, "ETCD_") || strings.HasPrefix(variable, "KUBE_") ||
			strings.HasPrefix(variable, "KUBECONFIG=") {
			continue
		}
		kept = append(kept, variable)
	}
	return kept
}
