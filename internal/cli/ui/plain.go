package ui

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// All output for people passes through this file. Text from a cluster, an issuer or a file may contain escape sequences
// that control the terminal, or line ends to forge our own "hint: run ...". Both are printed escaped.

// Plain returns text safe to print: on one line, with control characters escaped.
func Plain(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// ErrorText returns the text of err safe to print. Each of several joined errors is on its own line; line ends inside
// them are escaped.
func ErrorText(err error) string {
	for {
		below := errors.Unwrap(err)
		if below == nil || below.Error() != err.Error() {
			break
		}
		err = below // a wrapper that adds a hint or an exit code, and no text
	}
	text := err.Error()
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var lines, raw []string
		for _, one := range joined.Unwrap() {
			lines, raw = append(lines, ErrorText(one)), append(raw, one.Error())
		}
		if text == strings.Join(raw, "\n") {
			return strings.Join(lines, "\n")
		}
	}
	if below := errors.Unwrap(err); below != nil {
		if before, ok := strings.CutSuffix(text, below.Error()); ok {
			return oneLine(before) + ErrorText(below)
		}
	}
	return oneLine(text)
}

// oneLine is like Plain, but joins lines with spaces.
func oneLine(text string) string {
	if strings.Contains(text, "\n") {
		text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
	}
	return Plain(text)
}

// Lines returns one of our own hints, which may have several lines, safe to print.
func Lines(text string) string { return string(Text(io.Discard, []byte(strings.TrimSpace(text)))) }

// plainArgs makes the arguments of a format safe to print, each on one line.
func plainArgs(args []any) []any {
	shown := make([]any, len(args))
	for i, arg := range args {
		switch value := arg.(type) {
		case string:
			shown[i] = coloured(value)
		case error:
			shown[i] = coloured(ErrorText(value))
		case fmt.Stringer:
			shown[i] = coloured(value.String())
		default:
			shown[i] = arg
			if text := reflect.ValueOf(arg); text.Kind() == reflect.String { // a named string type, such as a reason
				shown[i] = coloured(text.String())
			}
		}
	}
	return shown
}

// Println prints one line. It ignores write errors.
func Println(w io.Writer, format string, args ...any) {
	_, _ = io.WriteString(w, oneLine(fmt.Sprintf(format, args...))+"\n")
}

// Fprintf is like fmt.Fprintf, with arguments made safe to print on one line. They may be coloured.
func Fprintf(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format, plainArgs(args)...)
}

// Text returns a text of several lines safe to print on w, with our colours if w is a terminal.
func Text(w io.Writer, text []byte) []byte {
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		cells := strings.Split(line, "\t")
		for j := range cells {
			if IsTerminal(w) {
				cells[j] = coloured(cells[j])
			} else {
				cells[j] = Plain(cells[j])
			}
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return []byte(strings.Join(lines, "\n"))
}

// ours matches the sequences of Style.
var ours = regexp.MustCompile("\x1b\\[(0|1|2|31|32|33)m")

// coloured is like Plain, but keeps the colours of Style.
func coloured(text string) string {
	var out strings.Builder
	for {
		at := ours.FindStringIndex(text)
		if at == nil {
			out.WriteString(Plain(text))
			return out.String()
		}
		out.WriteString(Plain(text[:at[0]]) + text[at[0]:at[1]])
		text = text[at[1]:]
	}
}

// PlainTable is Table without colours.
func PlainTable(w io.Writer, header []string, rows [][]string) error {
	shown := make([][]string, len(rows))
	for i, row := range rows {
		for _, cell := range row {
			shown[i] = append(shown[i], Plain(cell))
		}
	}
	return Table(w, header, shown)
}

// ShellWord quotes text as one word of a shell command, for commands in hints that people copy.
func ShellWord(text string) string {
	const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+~"
	if text != "" && text[0] != '~' && strings.Trim(text, harmless) == "" {
		return text
	}
	if shown := Plain(text); shown != text {
		return "$'" + strings.ReplaceAll(shown, "'", `\'`) + "'" // the command stays on one line
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

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
