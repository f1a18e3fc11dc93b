package ui

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Style colours text. The zero value does not.
type Style struct{ Colour bool }

// IsTerminal reports whether w is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// StyleFor returns the style for w: colour on a terminal, unless the environment has a non-empty NO_COLOR or TERM=dumb.
func StyleFor(w io.Writer, getenv func(string) string) Style {
	return Style{Colour: IsTerminal(w) && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"}
}

func (s Style) paint(code, text string) string {
	if !s.Colour || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Good colours a success.
func (s Style) Good(text string) string { return s.paint("32", text) }

// Bad colours a failure.
func (s Style) Bad(text string) string { return s.paint("31", text) }

// Caution colours a warning.
func (s Style) Caution(text string) string { return s.paint("33", text) }

// Faint dims less important text.
func (s Style) Faint(text string) string { return s.paint("2", text) }

// Bold makes headings bold.
func (s Style) Bold(text string) string { return s.paint("1", text) }
