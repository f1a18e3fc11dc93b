// Package scenario runs a user scenario: it shows shell commands, runs them, shows their output, and says what was
// checked. The demo and the end-to-end test are scenarios.
package scenario

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

const (
	width  = 96
	indent = "   "
)

// Screen shows a scenario to a person: titles, explanations, commands, their output, and what was checked.
type Screen struct {
	Out io.Writer
	// Colour enables ANSI colors.
	Colour bool

	mu   sync.Mutex
	step int
}

func (s *Screen) paint(code, text string) string {
	if !s.Colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Print writes text unchanged.
func (s *Screen) Print(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.Out, text)
}

// Title starts a step.
func (s *Screen) Title(text string) {
	s.step++
	s.Print("\n" + s.paint("1", fmt.Sprintf("%d. %s", s.step, text)) + "\n")
}

// Say prints an explanation. Each line of text is a paragraph.
func (s *Screen) Say(text string) {
	for paragraph := range strings.SplitSeq(text, "\n") {
		s.Print("\n")
		for _, line := range wrap(paragraph, width-len(indent)) {
			s.Print(indent + line + "\n")
		}
	}
}

// Command shows a command before it is run.
func (s *Screen) Command(text string) {
	lines := strings.Split(text, "\n")
	s.Print("\n")
	for i, line := range lines {
		prompt := "$ "
		if i > 0 {
			prompt = "  "
		}
		s.Print(indent + s.paint("36", prompt+line) + "\n")
	}
}

// Output returns a writer for the output of a command.
func (s *Screen) Output() io.Writer { return &indenter{screen: s, lineStart: true} }

// Checked says what a step has verified.
func (s *Screen) Checked(format string, args ...any) {
	s.Print("\n" + indent + s.paint("32", "✓ "+fmt.Sprintf(format, args...)) + "\n")
}

// Done says that everything succeeded.
func (s *Screen) Done(text string) { s.Print("\n" + s.paint("1;32", text) + "\n") }

// Failed prints the error that ended the scenario.
func (s *Screen) Failed(err error) { s.Print("\n" + s.paint("1;31", "error: "+err.Error()) + "\n") }

// indenter indents every line, including lines that arrive in pieces. It is safe for concurrent use.
type indenter struct {
	screen    *Screen
	mu        sync.Mutex
	lineStart bool
}

func (w *indenter) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var text strings.Builder
	for line := range strings.Lines(string(data)) {
		if w.lineStart {
			text.WriteString(indent)
		}
		text.WriteString(line)
		w.lineStart = strings.HasSuffix(line, "\n")
	}
	w.screen.Print(text.String())
	return len(data), nil
}

// wrap breaks text into lines of at most width columns. A longer word gets its own line.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
