// Package ui formats terminal output: progress lines, tables, colour, hints and exit codes.
//
// It is the only package that knows about terminals. Commands return errors; WithHint and WithExitCode attach the hint
// that the root command prints below the error, and the exit code.
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

// Terminal prompts the user. Prompts go to Out, normally stderr, as stdout is for results.
type Terminal struct {
	In  io.Reader
	Out io.Writer
	// NoInput means that In must not be read, even if it is a terminal.
	NoInput bool

	lines *bufio.Reader
}

// Interactive reports whether a user can respond.
func (t *Terminal) Interactive() bool { return !t.NoInput && IsTerminal(t.In) }

// Print prints text. It ignores write errors.
func (t *Terminal) Print(text string) { _, _ = t.Out.Write(Text(io.Discard, []byte(text))) }

// ReadLine prompts for a line. If ctx ends first, the reading goroutine is left behind.
func (t *Terminal) ReadLine(ctx context.Context, prompt string) (string, error) {
	if t.lines == nil {
		t.lines = bufio.NewReader(t.In)
	}
	return t.ask(ctx, prompt, func() (string, error) {
		line, err := t.lines.ReadString('\n')
		if line != "" {
			err = nil // the last line may lack a line feed
		}
		return strings.TrimRight(line, "\r\n"), err
	})
}

// ReadSecret prompts for a line without echo.
func (t *Terminal) ReadSecret(ctx context.Context, prompt string) (string, error) {
	file, ok := t.In.(*os.File)
	if !ok || !t.Interactive() {
		return "", errors.New("there is no terminal")
	}
	descriptor := int(file.Fd()) // get it once: the reader may outlive the wait and the file
	before, err := term.GetState(descriptor)
	if err != nil {
		return "", err
	}
	defer func() { _ = term.Restore(descriptor, before) }() // also after an interrupt
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
