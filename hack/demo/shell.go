package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// shell runs commands exactly as they are shown, by sh, in one directory and with one environment.
type shell struct {
	screen *screen
	dir    string
	env    []string
}

// run shows a command, runs it, shows what it prints and returns that.
func (s *shell) run(ctx context.Context, command string) (string, error) {
	s.screen.command(command)
	text, err := s.quietly(ctx, command, s.screen.output())
	if err != nil {
		return text, fmt.Errorf("running %q: %w", firstLine(command), err)
	}
	return text, nil
}

// fails shows and runs a command that has to fail with a message that holds want.
func (s *shell) fails(ctx context.Context, command, want string) error {
	s.screen.command(command)
	text, err := s.quietly(ctx, command, s.screen.output())
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("running %q: %w", firstLine(command), err)
	}
	if err == nil {
		return fmt.Errorf("%q succeeded, but it should have failed with %q", firstLine(command), want)
	}
	if !strings.Contains(text, want) {
		return fmt.Errorf("%q failed as it should, but did not say %q", firstLine(command), want)
	}
	return nil
}

// soon shows a command and runs it until it succeeds or limit is over. It shows the output of the last run only.
func (s *shell) soon(ctx context.Context, command string, limit time.Duration) (string, error) {
	s.screen.command(command)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		text, err := s.quietly(ctx, command, io.Discard)
		if err == nil || ctx.Err() != nil {
			_, _ = io.WriteString(s.screen.output(), text)
		}
		if err == nil {
			return text, nil
		}
		select {
		case <-ctx.Done():
			return text, fmt.Errorf("running %q for %v: %w", firstLine(command), limit, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// quietly runs a command without showing it. What it prints goes to also, too.
func (s *shell) quietly(ctx context.Context, command string, also io.Writer) (string, error) {
	var text bytes.Buffer
	process := s.process(ctx, command)
	process.Stdout = io.MultiWriter(&text, also)
	process.Stderr = process.Stdout
	err := process.Run()
	return text.String(), err
}

func (s *shell) process(ctx context.Context, command string) *exec.Cmd {
	process := exec.CommandContext(ctx, "sh", "-c", command)
	process.Dir, process.Env = s.dir, s.env
	process.WaitDelay = 5 * time.Second
	return process
}

// background is a command that goes on while others run.
type background struct {
	cancel context.CancelFunc
	ended  chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
}

// start shows a single command, without pipes or redirections, and starts it.
func (s *shell) start(ctx context.Context, command string) (*background, error) {
	s.screen.command(command)
	ctx, cancel := context.WithCancel(ctx)
	b := &background{cancel: cancel, ended: make(chan struct{})}
	// With exec the command itself is stopped, and not only a shell that waits for it.
	process := s.process(ctx, "exec "+command)
	process.Stdout = io.MultiWriter(b, s.screen.output())
	process.Stderr = process.Stdout
	if err := process.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("starting %q: %w", firstLine(command), err)
	}
	go func() {
		defer close(b.ended)
		_ = process.Wait() // it is killed in the end
	}()
	return b, nil
}

func (b *background) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(data)
}

// waitFor waits until the command has printed want.
func (b *background) waitFor(ctx context.Context, want string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		b.mu.Lock()
		text := b.text.String()
		b.mu.Unlock()
		if strings.Contains(text, want) {
			return nil
		}
		select {
		case <-b.ended:
			return fmt.Errorf("it ended before it printed %q", want)
		case <-ctx.Done():
			return fmt.Errorf("waiting until it prints %q: %w", want, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// running tells whether the command has not ended.
func (b *background) running() bool {
	select {
	case <-b.ended:
		return false
	default:
		return true
	}
}

func (b *background) stop() {
	b.cancel()
	<-b.ended
}

func firstLine(command string) string {
	line, _, more := strings.Cut(command, "\n")
	if more {
		line = strings.TrimSuffix(line, `\`) + "…"
	}
	return line
}

// quote makes a word that sh reads as text.
func quote(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=@,+%", r)
	}
	if text != "" && strings.TrimFunc(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
