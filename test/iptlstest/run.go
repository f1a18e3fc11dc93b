package iptlstest

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/test/resulttest"
)

// Run is one run of a command in a world.
type Run struct {
	Out, ErrOut bytes.Buffer
	Err         error
}

// Given returns a function that reports whether a flag is one of these.
func Given(flags ...string) func(string) bool {
	return func(flag string) bool { return slices.Contains(flags, flag) }
}

// Do runs a command as the command line does.
func (r *Run) Do(ctx context.Context, o factory.Command) *Run {
	r.Err = factory.Execute(ctx, o)
	return r
}

// Check checks the exit code, and that each part occurs in the output, the error or its hint. Machine-readable output
// must match its schema, and no failed step may repeat the error.
func (r *Run) Check(t *testing.T, code int, parts ...string) {
	t.Helper()
	if out := r.Out.String(); strings.HasPrefix(out, "{") || strings.HasPrefix(out, "apiVersion: cli.") {
		resulttest.Valid(t, r.Out.Bytes())
	}
	if got := ui.ExitCodeOf(r.Err); got != code {
		t.Errorf("exit code %d (%v), want %d", got, r.Err, code)
	}
	all := r.all()
	for step := range strings.Lines(r.ErrOut.String()) {
		if cause := causeOf(r.Err); cause != "" && strings.HasPrefix(step, "✗") && strings.Contains(step, cause) {
			t.Errorf("step %q says %q, and so does the error", step, cause)
		}
	}
	for _, part := range parts {
		if !strings.Contains(all, part) {
			t.Errorf("nothing says %q", part)
		}
	}
	if t.Failed() {
		t.Logf("stdout:\n%s\nstderr:\n%s\nerror: %v\nhint: %s", r.Out.String(), r.ErrOut.String(), r.Err,
			ui.HintOf(r.Err))
	}
}

// Hostile is untrusted text: it clears the screen, sets the title, reverses the direction of text, and forges one of
// our hints.
const Hostile = "a\x1b[2J\x1b]0;title\x07\u009b31m\u202e\rb\nhint: run evil\nerror: none"

// Forges fails the test if untrusted text affects the terminal or forges a line.
func (r *Run) Forges(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(r.Out.String() + r.ErrOut.String()) {
		if strings.ContainsAny(line, "\x1b\x07\r\u009b\u202e") || strings.HasPrefix(strings.TrimSpace(line), "hint:") ||
			strings.HasPrefix(line, "error:") {
			t.Errorf("forged: %q", line)
		}
	}
	if r.Err != nil && strings.ContainsAny(ui.ErrorText(r.Err), "\x1b\x07\r\n\u009b\u202e") {
		t.Errorf("forged: %q", ui.ErrorText(r.Err))
	}
	if t.Failed() {
		t.Logf("stdout:\n%q\nstderr:\n%q", r.Out.String(), r.ErrOut.String())
	}
}

// causeOf returns the part of an error after the first colon; empty if there is none.
func causeOf(err error) string {
	if err == nil {
		return ""
	}
	_, cause, _ := strings.Cut(err.Error(), ": ")
	cause, _, _ = strings.Cut(cause, " (and ")
	return cause
}

// all returns the output, the error and its hint.
func (r *Run) all() string {
	all := r.ErrOut.String() + r.Out.String()
	if r.Err != nil {
		all += r.Err.Error() + "\n" + ui.HintOf(r.Err)
	}
	return all
}

// Lacks checks that part does not occur in the output, the error or its hint.
func (r *Run) Lacks(t *testing.T, part string) {
	t.Helper()
	if all := r.all(); strings.Contains(all, part) {
		t.Errorf("something says %q:\n%s", part, all)
	}
}
