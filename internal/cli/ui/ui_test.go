package ui_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

type hinter struct{ hint string }

func (h hinter) Error() string { return "leaf" }
func (h hinter) Hint() string  { return h.hint }

func TestErrors(t *testing.T) {
	t.Parallel()
	leaf := errors.New("leaf")
	for _, test := range []struct {
		name string
		err  error
		hint string
		code int
	}{
		{name: "is done without an error", code: ui.ExitDone},
		{name: "fails with 1", err: leaf, code: ui.ExitFailed},
		{
			name: "finds a hint below", err: fmt.Errorf("doing: %w", ui.WithHint(leaf, "try %d", 2)), hint: "try 2",
			code: ui.ExitFailed,
		},
		{
			name: "takes the outermost hint", err: ui.WithHint(ui.WithHint(leaf, "inner"), "outer"), hint: "outer",
			code: ui.ExitFailed,
		},
		{name: "passes over an empty hint", err: ui.WithHint(hinter{"below"}, ""), hint: "below", code: ui.ExitFailed},
		{
			name: "takes hints of other packages", err: fmt.Errorf("doing: %w", hinter{"theirs"}), hint: "theirs",
			code: ui.ExitFailed,
		},
		{name: "is wrong usage", err: ui.WithHint(ui.Usage(leaf), "h"), hint: "h", code: ui.ExitUsage},
		{name: "takes the outermost code", err: ui.WithExitCode(ui.Usage(leaf), ui.ExitRefused), code: ui.ExitRefused},
		{name: "timed out", err: fmt.Errorf("waiting: %w", context.DeadlineExceeded), code: ui.ExitTimedOut},
		{name: "was interrupted", err: fmt.Errorf("waiting: %w", context.Canceled), code: ui.ExitInterrupted},
		{
			name: "prefers an attached code to a timeout", err: ui.WithExitCode(context.DeadlineExceeded, ui.ExitNotConverged),
			code: ui.ExitNotConverged,
		},
		{name: "stays nil", err: ui.Usage(ui.WithHint(nil, "nothing")), code: ui.ExitDone},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := ui.HintOf(test.err); got != test.hint {
				t.Errorf("want hint %q, got %q", test.hint, got)
			}
			if got := ui.ExitCodeOf(test.err); got != test.code {
				t.Errorf("want code %d, got %d", test.code, got)
			}
		})
	}
	if !errors.Is(ui.Usage(ui.WithHint(leaf, "h")), leaf) {
		t.Error("want the leaf found below hint and code")
	}
}

// TestPlain checks that the content of a file cannot forge a line, a colour or a command.
func TestPlain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ shown, word string }{
		`größe \ "a"`:              {`größe \ "a"`, `'größe \ "a"'`},
		"a\nteam.yaml ok":          {`a\nteam.yaml ok`, `$'a\nteam.yaml ok'`},
		"\x1b[2K\"it's\" \\u202e":  {`\x1b[2K"it's" \\u202e`, `$'\x1b[2K"it\'s" \\u202e'`},
		"\u202eright to left\xff ": {`\u202eright to left\xff `, `$'\u202eright to left\xff '`},
	} {
		if got := ui.Plain(text); got != want.shown {
			t.Errorf("%q is shown as %q, want %q", text, got, want.shown)
		}
		if got := ui.ShellWord(text); got != want.word {
			t.Errorf("%q is the word %q, want %q", text, got, want.word)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	style := ui.Style{Colour: true}
	var out bytes.Buffer
	err := ui.Table(&out, []string{"code", "what", "message"}, [][]string{
		{style.Bad("Expired"), "error", "since yesterday"}, {"Größe", "", "x"}, {"a", "b", ""},
	})
	want := "CODE      WHAT    MESSAGE\n\x1b[31mExpired\x1b[0m   error   since yesterday\nGröße             x\na         b\n"
	if diff := cmp.Diff(want, out.String()); diff != "" || err != nil {
		t.Errorf("table (-want +got):\n%s, %v", diff, err)
	}
}

func TestProgressIsLinesWithoutATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := ui.NewProgress(&out, func(string) string { return "" }, false)
	p.Info("one %d", 1)
	task := p.Start("two")
	task.Update("two")
	task.Update("two and a half")
	task.Done("three")
	task.Fail("never")
	p.Warn("four")
	p.Fail("five")
	p.Start("six").Stop()
	want := "• one 1\n• two\n• two and a half\n✓ three\n! four\n✗ five\n• six\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	ui.NewProgress(nil, func(string) string { return "" }, true).Start("quiet").Done("quiet")
}

// TestSpinner prints lines next to a running task from several goroutines.
func TestSpinner(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &ui.Progress{Out: &out, Spin: true}
	task := p.Start("waiting")
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			p.Info("line %d", i)
			task.Update("still waiting %d", i)
		})
	}
	writers.Wait()
	task.Done("done")
	for _, want := range []string{"\r\x1b[K• line 3\n", "✓ done\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in %q", want, out.String())
		}
	}
	if !strings.HasSuffix(out.String(), "✓ done\n") {
		t.Errorf("want the result last, got %q", out.String())
	}
}

func TestStyle(t *testing.T) {
	t.Parallel()
	if got := (ui.Style{}).Good("x") + (ui.Style{}).Bold("y"); got != "xy" {
		t.Errorf("want plain text, got %q", got)
	}
	if ui.StyleFor(&bytes.Buffer{}, func(string) string { return "" }).Colour {
		t.Error("want no colour in a buffer")
	}
}

func TestStepsShowTheirDuration(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := &ui.Progress{Out: &out, Now: func() time.Time { return now }}
	p.Done("first")
	now = now.Add(50 * time.Millisecond)
	p.Done("quick")
	now = now.Add(2340 * time.Millisecond)
	p.Warn("no step")
	p.Fail("slow")
	if got, want := out.String(), "✓ first\n✓ quick\n! no step\n✗ slow (2.3s)\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
