package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// ProgramOptions configures a program that runs next to the cluster.
type ProgramOptions struct {
	// Name is used in messages and for the name of the log. It must be unique within the cluster.
	Name string
	Path string
	Args []string
	// Env are variables, each as NAME=VALUE, in addition to those of this process.
	Env []string
	// Ready returns nil once the program is ready; a nil Ready means at once. The error of a start that takes too long
	// includes its last error.
	Ready func(context.Context) error
}

// Listening returns a ProgramOptions.Ready that connects to an address.
func Listening(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return connection.Close()
	}
}

// Program is a program of the control plane, or one that runs on this machine next to it. It ends with the cluster, or
// when this process ends in any way. It can be started and stopped repeatedly, and is safe for concurrent use. No lock
// is held while it starts, so a program that waits for another one can be started first.
type Program struct {
	options ProgramOptions
	dir     string
	logPath string
	timeout time.Duration // of a start
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

func (c *Cluster) newProgram(options ProgramOptions) *Program {
	return &Program{
		options: options, dir: c.dir, guard: c.guard, timeout: c.options.StartTimeout,
		logPath: filepath.Join(c.logDir(), options.Name+".log"),
	}
}

// StartProgram starts a program and returns when it is ready. An error includes the end of its log.
func (c *Cluster) StartProgram(ctx context.Context, options ProgramOptions) (*Program, error) {
	var err error
	if options.Path, err = filepath.Abs(options.Path); err != nil {
		return nil, fmt.Errorf("starting %s: %w", options.Name, err)
	}
	program := c.newProgram(options)
	if err := c.register(program); err != nil {
		return nil, fmt.Errorf("starting %s: %w", options.Name, err)
	}
	if err := program.start(ctx); err != nil {
		return nil, err
	}
	return program, nil
}

// register makes a program end with the cluster.
func (c *Cluster) register(program *Program) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return errStopped
	}
	c.programs = append(c.programs, program)
	return nil
}

// latest returns the latest run, or nil before the first.
func (p *Program) latest() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// Running reports whether the program is running.
func (p *Program) Running() bool { return p.latest().running() }

// PID returns the process ID of the program's latest start.
func (p *Program) PID() int { return p.latest().process.Process.Pid }

// Log returns the path of the program's log. Each start appends to it.
func (p *Program) Log() string { return p.logPath }

// CommandLine returns the program's path and arguments, for display.
func (p *Program) CommandLine() []string { return append([]string{p.options.Path}, p.options.Args...) }

// Restart stops the program if it is running, starts it again with the same arguments, and returns when it is ready.
func (p *Program) Restart(ctx context.Context) error {
	if err := p.Stop(); err != nil {
		return err
	}
	return p.start(ctx)
}

// start starts the program and waits until it is ready. It stops a program that does not become ready.
func (p *Program) start(ctx context.Context) error {
	started, offset, err := p.launch()
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.options.Name, err)
	}
	if err := p.waitReady(ctx, started); err != nil {
		stopErr := p.end(started)
		return fmt.Errorf("starting %s: %w", p.options.Name, errors.Join(p.explain(err, offset), stopErr))
	}
	return nil
}

// launch starts the program. logOffset is the size of the log file before the start.
func (p *Program) launch() (started *run, logOffset int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, 0, errStopped
	}
	if p.run.running() {
		return nil, 0, errors.New("it is running already")
	}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, err
	}
	defer log.Close() //nolint:errcheck // the program has its own copy
	if info, err := log.Stat(); err == nil {
		logOffset = info.Size()
	}
	process := exec.Command(p.options.Path, p.options.Args...) //nolint:noctx // stopped by Stop, not by a context
	process.Dir = p.dir
	process.Env = append(programEnv(os.Environ()), p.options.Env...)
	process.Stdout, process.Stderr = log, log
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the guard kills the group
	if err := process.Start(); err != nil {
		return nil, 0, err
	}
	p.run = &run{process: process, ended: make(chan struct{})}
	guardErr := p.guard.add(process.Process) // before anyone can observe its end, which makes the guard forget it
	go func(ended chan struct{}) {
		_ = process.Wait() // ProcessState has the result
		p.guard.remove(process.Process)
		close(ended)
	}(p.run.ended)
	if guardErr != nil {
		return nil, 0, errors.Join(guardErr, p.end(p.run))
	}
	return p.run, logOffset, nil
}

// waitReady polls the program until it is ready, has ended, or the timeout has passed.
func (p *Program) waitReady(ctx context.Context, started *run) error {
	if p.options.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var last error
	for {
		attempt, cancelAttempt := context.WithTimeout(ctx, 5*time.Second)
		err := p.options.Ready(attempt)
		cancelAttempt()
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // its own error, not that of the canceled poll
		}
		select {
		case <-started.ended:
			return fmt.Errorf("it ended before it was ready: %s", started.process.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("waiting until it is ready: %w (last answer: %w)", context.Cause(ctx), last)
		case <-time.After(pollInterval):
		}
	}
}

// Stop terminates the program, kills it after ten seconds, and returns after it has ended. It is not an error if the
// program is not running. A pending start of the program fails.
func (p *Program) Stop() error { return p.end(p.latest()) }

// close stops the program permanently: it cannot be started again.
func (p *Program) close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	return p.Stop()
}

// Kill ends the program at once, as a crash would, and returns after it has ended.
func (p *Program) Kill() error { return p.kill(p.latest()) }

func (p *Program) kill(running *run) error {
	if !running.running() {
		return nil
	}
	if err := running.process.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.options.Name, err)
	}
	<-running.ended
	return nil
}

// end is Stop for one run.
func (p *Program) end(running *run) error {
	if !running.running() {
		return nil
	}
	err := running.process.Process.Signal(syscall.SIGTERM)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", p.options.Name, err)
	}
	select {
	case <-running.ended:
		return nil
	case <-time.After(stopGrace):
		return p.kill(running)
	}
}

// explain adds the end of the log, from offset on, to err.
func (p *Program) explain(err error, offset int64) error {
	end, readErr := tail(p.logPath, offset)
	switch {
	case readErr != nil:
		end = "(" + readErr.Error() + ")"
	case end == "":
		end = "(nothing)"
	}
	return fmt.Errorf("%w\nthe end of its log %q:\n  %s", err, p.logPath, strings.ReplaceAll(end, "\n", "\n  "))
}

// tail returns the last lines of a file from offset on.
func tail(path string, offset int64) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // only read
	if info, err := file.Stat(); err == nil {
		offset = max(offset, info.Size()-tailBytes)
	}
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return "", err
	}
	data, err := io.ReadAll(file)
	lines := strings.Split(string(bytes.TrimSpace(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n"), err
}

// programEnv removes the variables with which etcd and Kubernetes would let the caller's environment change a cluster.
func programEnv(environ []string) []string {
	return slices.DeleteFunc(environ, func(variable string) bool {
		return strings.HasPrefix(variable, "ETCD_") || strings.HasPrefix(variable, "KUBE_") ||
			strings.HasPrefix(variable, "KUBECONFIG=")
	})
}
