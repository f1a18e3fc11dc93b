package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ProgramOptions say what runs beside the cluster.
type ProgramOptions struct {
	// Name is for messages and for the name of the log. It is unique within the cluster.
	Name string
	Path string
	Args []string
	// Ready returns nil once the program does its work; nil means at once. What it returned last explains a start that takes too long.
	Ready func(context.Context) error
}

// Program is a program of ours that runs on this machine beside the cluster, and ends with it, or when this process ends in
// whatever way.
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, fmt.Errorf("starting %s: %w", options.Name, errStopped)
	}
	program := &Program{cluster: c, component: &component{
		name: options.Name, path: path, args: options.Args, dir: c.dir, ready: ready, guard: c.guard, thread: c.thread,
		logPath: filepath.Join(c.logDir(), options.Name+".log"),
	}}
	if err := program.component.start(ctx, c.options.StartTimeout); err != nil {
		return nil, err
	}
	c.programs = append(c.programs, program.component)
	return program, nil
}

// Stop asks the program to end, kills it when it does not do so in time, and returns after it has ended.
func (p *Program) Stop() error { return p.cluster.stopProgram(p.component) }

// Kill ends the program at once, as a crash would, and returns after it has ended.
func (p *Program) Kill() error {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	if !p.component.running() {
		return nil
	}
	if err := p.component.process.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.component.name, err)
	}
	<-p.component.ended
	return nil
}

// Restart stops the program if it runs, starts it again with the same arguments, and returns when it is ready.
func (p *Program) Restart(ctx context.Context) error {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	return p.cluster.restart(ctx, p.component)
}

// Running reports whether the program has not ended.
func (p *Program) Running() bool {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	return p.component.running()
}

// PID is the program's process ID, of its latest start.
func (p *Program) PID() int {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	return p.component.process.Process.Pid
}

// Log is the path of the program's log, which every start continues.
func (p *Program) Log() string { return p.component.logPath }

// CommandLine is the program's path and arguments, to be shown to a human.
func (p *Program) CommandLine() []string {
	return append([]string{p.component.path}, p.component.args...)
}
