package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Shell runs commands with sh, exactly as they are shown, in one directory and environment.
type Shell struct {
	Screen *Screen
	Dir    string
	Env    []string
}

// OpenShell returns a shell in dir with this kubeconfig. The directories in programs come first on its PATH. kubectl
// and pinniped keep their files in dir.
func OpenShell(screen *Screen, dir, kubeconfig string, programs ...string) *Shell {
	path := strings.Join(append(programs, os.Getenv("PATH")), string(os.PathListSeparator))
	return &Shell{Screen: screen, Dir: dir, Env: lastOfEach(append(os.Environ(),
		"KUBECONFIG="+kubeconfig,
		"XDG_CONFIG_HOME="+filepath.Join(dir, "config"), // where pinniped keeps credentials
		"KUBECACHEDIR="+filepath.Join(dir, "kubecache"),
		"PATH="+path,
	))}
}

// lastOfEach keeps only the last value of each variable.
func lastOfEach(env []string) []string {
	last := map[string]int{}
	for i, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		last[name] = i
	}
	var kept []string
	for i, entry := range env {
		if name, _, _ := strings.Cut(entry, "="); last[name] == i {
			kept = append(kept, entry)
		}
	}
	return kept
}

// Run shows a command, runs it, and shows and returns its output.
func (s *Shell) Run(ctx context.Context, command string) (string, error) {
	s.Screen.Command(command)
	text, err := s.quietly(ctx, command, s.Screen.Output())
	if err != nil {
		return text, fmt.Errorf("running %q: %w", firstLine(command), err)
	}
	return text, nil
}

// Fails shows and runs a command that must fail with an output that contains want.
func (s *Shell) Fails(ctx context.Context, command, want string) error {
	s.Screen.Command(command)
	text, err := s.quietly(ctx, command, s.Screen.Output())
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

// Soon shows a command and runs it until it succeeds or limit has passed. It shows only the last output.
func (s *Shell) Soon(ctx context.Context, command string, limit time.Duration) (string, error) {
	s.Screen.Command(command)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		text, err := s.quietly(ctx, command, io.Discard)
		if err == nil || ctx.Err() != nil {
			_, _ = io.WriteString(s.Screen.Output(), text)
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

// quietly runs a command without showing it, and also writes its output to also.
func (s *Shell) quietly(ctx context.Context, command string, also io.Writer) (string, error) {
	var text bytes.Buffer
	process := s.process(ctx, command)
	process.Stdout = io.MultiWriter(&text, also)
	process.Stderr = process.Stdout
	err := process.Run()
	return text.String(), err
}

func (s *Shell) process(ctx context.Context, command string) *exec.Cmd {
	process := exec.CommandContext(ctx, "sh", "-c", command)
	process.Dir, process.Env = s.Dir, s.Env
	process.WaitDelay = 5 * time.Second
	return process
}

// Background is a command that runs in the background.
type Background struct {
	cancel context.CancelFunc
	ended  chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
}

// Start shows and starts a single command, without pipes or redirections.
func (s *Shell) Start(ctx context.Context, command string) (*Background, error) {
	s.Screen.Command(command)
	ctx, cancel := context.WithCancel(ctx)
	b := &Background{cancel: cancel, ended: make(chan struct{})}
	// With exec, canceling stops the command itself, not only a shell that waits for it.
	process := s.process(ctx, "exec "+command)
	process.Stdout = io.MultiWriter(b, s.Screen.Output())
	process.Stderr = process.Stdout
	if err := process.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("starting %q: %w", firstLine(command), err)
	}
	go func() {
		defer close(b.ended)
		_ = process.Wait() // it is always killed
	}()
	return b, nil
}

// Write records the output of the command.
func (b *Background) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(data)
}

// WaitFor waits until the command has printed want.
func (b *Background) WaitFor(ctx context.Context, want string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		if strings.Contains(b.Text(), want) {
			return nil
		}
		select {
		case <-b.ended:
			if strings.Contains(b.Text(), want) { // just before it ended
				return nil
			}
			return fmt.Errorf("it ended before it printed %q", want)
		case <-ctx.Done():
			return fmt.Errorf("waiting until it prints %q: %w", want, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Text returns the output of the command so far.
func (b *Background) Text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Running reports whether the command is still running.
func (b *Background) Running() bool {
	select {
	case <-b.ended:
		return false
	default:
		return true
	}
}

// Stop kills the command and waits until it has ended.
func (b *Background) Stop() {
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

// Quote quotes text as one word for sh.
func Quote(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=@,+%", r)
	}
	if text != "" && strings.TrimFunc(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
