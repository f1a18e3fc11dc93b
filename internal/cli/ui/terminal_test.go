//go:build unix

package ui

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// person opens a pseudo-terminal: text written to types appears on in.
func person(t *testing.T) (types, in *os.File) {
	t.Helper()
	types, in, err := pty.Open()
	if err != nil {
		t.Skipf("this system gives no terminal: %v", err)
	}
	t.Cleanup(func() { _ = errors.Join(types.Close(), in.Close()) })
	return types, in
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	types, in := person(t)
	var out bytes.Buffer
	terminal := &Terminal{In: in, Out: &out}
	if !terminal.Interactive() {
		t.Fatal("want a terminal")
	}
	if _, err := io.WriteString(types, "ann\r"); err != nil {
		t.Fatal(err)
	}
	if line, err := terminal.ReadLine(t.Context(), "Username: "); err != nil || line != "ann" {
		t.Errorf("want the line, got %q, %v", line, err)
	}
	if _, err := io.WriteString(types, "secret\r"); err != nil {
		t.Fatal(err)
	}
	if secret, err := terminal.ReadSecret(t.Context(), "Password: "); err != nil || secret != "secret" {
		t.Errorf("want the secret, got %q, %v", secret, err)
	}
	if out.String() != "Username: Password: \n" {
		t.Errorf("prompts %q", out.String())
	}
	terminal.NoInput = true
	if terminal.Interactive() {
		t.Error("want no input where it is another program's")
	}
	if _, err := terminal.ReadSecret(t.Context(), ""); err == nil {
		t.Error("want no secret there")
	}
}

// TestTerminalGivesUp checks a user who does not respond, and an input that is no terminal.
func TestTerminalGivesUp(t *testing.T) {
	t.Parallel()
	_, in := person(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	terminal := &Terminal{In: in, Out: io.Discard}
	if _, err := terminal.ReadSecret(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("want the deadline, got %v", err)
	}
	file := &Terminal{In: strings.NewReader("last line"), Out: io.Discard}
	if line, err := file.ReadLine(t.Context(), ""); file.Interactive() || err != nil || line != "last line" {
		t.Errorf("want the line without a line feed, got %q, %v", line, err)
	}
	if _, err := file.ReadLine(t.Context(), ""); !errors.Is(err, io.EOF) {
		t.Errorf("want the end, got %v", err)
	}
}
