package devcluster

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
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

// Program is a program that runs on this machine next to the cluster. It ends with the cluster, or when this process
// ends in any way.
type Program struct {
	cluster   *Cluster
	component *component
}

// StartProgram starts a program and returns when it is ready. An error includes the end of its log.
func (c *Cluster) StartProgram(ctx context.Context, options ProgramOptions) (*Program, error) {
	path, err := filepath.Abs(options.Path)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", options.Name, err)
	}
	ready := options.Ready
	if ready == nil {
		ready = func(context.Context) error { return nil }
	}
	program := &Program{cluster: c, component: &component{
		name:    options.Name,
		path:    path,
		args:    options.Args,
		env:     options.Env,
		dir:     c.dir,
		ready:   ready,
		guard:   c.guard,
		logPath: filepath.Join(c.logDir(), options.Name+".log"),
	}}
	if err := c.register(program.component); err != nil {
		return nil, fmt.Errorf("starting %s: %w", options.Name, err)
	}
	if err := program.component.start(ctx, c.options.StartTimeout); err != nil {
		return nil, err
	}
	return program, nil
}

// register makes a program end with the cluster.
func (c *Cluster) register(program *component) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return errStopped
	}
	c.programs = append(c.programs, program)
	return nil
}

// Stop terminates the program, kills it after ten seconds, and returns after it has ended. A pending start of the
// program fails.
func (p *Program) Stop() error { return p.component.stop() }

// StopWithin is Stop with another time until the program is killed, like terminationGracePeriodSeconds of a Pod.
func (p *Program) StopWithin(grace time.Duration) error {
	return p.component.end(p.component.latest(), grace)
}

// Kill ends the program at once, as a crash would, and returns after it has ended.
func (p *Program) Kill() error { return p.component.kill(p.component.latest()) }

// Restart stops the program if it is running, starts it again with the same arguments, and returns when it is ready.
func (p *Program) Restart(ctx context.Context) error { return p.cluster.restart(ctx, p.component) }

// Running reports whether the program is running.
func (p *Program) Running() bool { return p.component.running() }

// PID returns the process ID of the program's latest start.
func (p *Program) PID() int { return p.component.latest().process.Process.Pid }

// Log returns the path of the program's log. Each start appends to it.
func (p *Program) Log() string { return p.component.logPath }

// CommandLine returns the program's path and arguments, for display.
func (p *Program) CommandLine() []string {
	return append([]string{p.component.path}, p.component.args...)
}
