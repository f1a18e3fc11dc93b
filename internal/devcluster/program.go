package devcluster

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// ProgramOptions say what runs next to the cluster.
type ProgramOptions struct {
	// Name is for messages and for the name of the log. It is unique within the cluster.
	Name string
	Path string
	Args []string
	// Env are variables, each as NAME=VALUE, next to those of this process.
	Env []string
	// Ready returns nil once the program does its work; nil means at once. What it returned last explains a start that
	// takes too long.
	Ready func(context.Context) error
}

// Program is a program of ours that runs on this machine next to the cluster, and ends with it, or when this process
// ends in whatever way.
type Program struct {
	cluster   *Cluster
	component *component
}

// StartProgram starts a program and returns when it is ready. An error carries the end of its log.
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

// Stop asks the program to end, kills it when it does not do so in time, and returns after it has ended. A start of the
// program that is not done yet fails.
func (p *Program) Stop() error { return p.component.stop() }

// StopWithin is Stop for a program that may take longer or less long than others until it is killed, as a Pod may with
// its terminationGracePeriodSeconds.
func (p *Program) StopWithin(grace time.Duration) error {
	return p.component.end(p.component.latest(), grace)
}

// Kill ends the program at once, as a crash would, and returns after it has ended.
func (p *Program) Kill() error { return p.component.kill(p.component.latest()) }

// Restart stops the program if it runs, starts it again with the same arguments, and returns when it is ready.
func (p *Program) Restart(ctx context.Context) error { return p.cluster.restart(ctx, p.component) }

// Running reports whether the program has not ended.
func (p *Program) Running() bool { return p.component.running() }

// PID is the program's process ID, of its latest start.
func (p *Program) PID() int { return p.component.latest().process.Process.Pid }

// Log is the path of the program's log, which every start continues.
func (p *Program) Log() string { return p.component.logPath }

// CommandLine is the program's path and arguments, to be shown to a human.
func (p *Program) CommandLine() []string {
	return append([]string{p.component.path}, p.component.args...)
}
