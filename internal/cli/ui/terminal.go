// Package ui is what a person at the terminal sees: progress lines, tables, colour, hints and exit codes.
//
// It is the only package that knows about terminals. Commands return errors; WithHint and WithExitCode attach what the
// root command prints below the error and what the process ends with.
package ui

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Terminal asks a person, for a command whose result goes to stdout: prompts go to Out, normally stderr.
type Terminal struct {
	In  io.Reader
	Out io.Writer
	// NoInput says that In is not ours to read, though it may be a terminal.
	NoInput bool

	lines *bufio.Reader
}

// Interactive reports whether a person can answer.
func (t *Terminal) Interactive() bool { return !t.NoInput && IsTerminal(t.In) }

// Print shows text. What cannot be shown stops nothing.
func (t *Terminal) Print(text string) { _, _ = t.Out.Write(Text(io.Discard, []byte(text))) }

// ReadLine asks for a line. When ctx ends it returns, and leaves behind the goroutine that reads.
func (t *Terminal) ReadLine(ctx context.Context, prompt string) (string, error) {
	if t.lines == nil {
		t.lines = bufio.NewReader(t.In)
	}
	return t.ask(ctx, prompt, func() (string, error) {
		line, err := t.lines.ReadString('\n')
		if line != "" {
			err = nil // the last line needs no line feed
		}
		return strings.TrimRight(line, "\r\n"), err
	})
}

// ReadSecret asks for a line that is not shown.
func (t *Terminal) ReadSecret(ctx context.Context, prompt string) (string, error) {
	file, ok := t.In.(*os.File)
	if !ok || !t.Interactive() {
		return "", errors.New("there is no terminal")
	}
	descriptor := int(file.Fd()) // asked for once: what reads may outlive the wait, and the file
	before, err := term.GetState(descriptor)
	if err != nil {
		return "", err
	}
	defer func() { _ = term.Restore(descriptor, before) }() // also when an interrupt ends the wait
	secret, err := t.ask(ctx, prompt, func() (string, error) {
		secret, err := term.ReadPassword(descriptor)
		return string(secret), err
	})
	t.Print("\n")
	return secret, err
}

func (t *Terminal) ask(ctx context.Context, prompt string, read func() (string, error)) (string, error) {
	t.Print(prompt)
	type result struct {
		text string
		err  error
	}
	results := make(chan result, 1)
	go func() {
		text, err := read()
		results <- result{text, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case got := <-results:
		return got.text, got.err
	}
}
