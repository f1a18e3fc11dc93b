package main

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

// screen shows the story to a human: titles, sentences, commands, their output, and what was checked.
type screen struct {
	out    io.Writer
	colour bool

	mu   sync.Mutex
	step int
}

func (s *screen) paint(code, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s *screen) print(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.out, text)
}

// title begins a step.
func (s *screen) title(text string) {
	s.step++
	s.print("\n" + s.paint("1", fmt.Sprintf("%d. %s", s.step, text)) + "\n")
}

// say explains something. Each line of text is a paragraph.
func (s *screen) say(text string) {
	for paragraph := range strings.SplitSeq(text, "\n") {
		s.print("\n")
		for _, line := range wrap(paragraph, width-len(indent)) {
			s.print(indent + line + "\n")
		}
	}
}

// command shows a command just before it is run.
func (s *screen) command(text string) {
	lines := strings.Split(text, "\n")
	s.print("\n")
	for i, line := range lines {
		prompt := "$ "
		if i > 0 {
			prompt = "  "
		}
		s.print(indent + s.paint("36", prompt+line) + "\n")
	}
}

// output returns a writer that shows what a command prints.
func (s *screen) output() io.Writer { return &indenter{screen: s, lineStart: true} }

// checked says what has been proven by a step.
func (s *screen) checked(format string, args ...any) {
	s.print("\n" + indent + s.paint("32", "✓ "+fmt.Sprintf(format, args...)) + "\n")
}

func (s *screen) done(text string) { s.print("\n" + s.paint("1;32", text) + "\n") }

func (s *screen) failed(err error) { s.print("\n" + s.paint("1;31", "error: "+err.Error()) + "\n") }

// indenter indents every line, also when lines arrive in pieces. A command's stdout and stderr may share one.
type indenter struct {
	screen    *screen
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
	w.screen.print(text.String())
	return len(data), nil
}

// wrap breaks text between words into lines of at most width columns. A longer word has a line of its own.
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
