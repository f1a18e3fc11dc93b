package ui

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Everything that is printed for a person passes through this file. Text that comes from a cluster, an issuer or a file
// may have escape sequences in it, which a terminal takes for commands, and line ends, after which it could forge our
// own "hint: run ...". Both are shown, and have no effect.

// Plain returns text as it can be shown: on one line, and without anything that a terminal takes for a command.
func Plain(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// ErrorText returns the text of err as it can be shown. Errors that were joined have a line each; a line end in one of
// them is not ours.
func ErrorText(err error) string {
	for {
		below := errors.Unwrap(err)
		if below == nil || below.Error() != err.Error() {
			break
		}
		err = below // which adds a hint or an exit code, and no text
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

// oneLine is Plain for what may have been laid out in lines, which become one.
func oneLine(text string) string {
	if strings.Contains(text, "\n") {
		text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
	}
	return Plain(text)
}

// Lines returns a hint of ours, which may have several lines, as it can be shown.
func Lines(text string) string { return string(Text(io.Discard, []byte(strings.TrimSpace(text)))) }

// plainArgs are args of a format of ours: what fills it in stays on its line.
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
			if text := reflect.ValueOf(arg); text.Kind() == reflect.String { // a type of its own, such as a reason
				shown[i] = coloured(text.String())
			}
		}
	}
	return shown
}

// Println prints one line. What cannot be shown stops nothing.
func Println(w io.Writer, format string, args ...any) {
	_, _ = io.WriteString(w, oneLine(fmt.Sprintf(format, args...))+"\n")
}

// Fprintf is fmt.Fprintf into a text for the terminal: what fills in the format stays on its line. It may be coloured.
func Fprintf(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format, plainArgs(args)...)
}

// Text returns a whole text for w as it can be shown: with its lines, and with our colours if w is a terminal.
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

// ours are the sequences of Style.
var ours = regexp.MustCompile("\x1b\\[(0|1|2|31|32|33)m")

// coloured is Plain for text that Style may have painted.
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

// ShellWord returns text as one word of a shell's command line. Hints have commands in them that people copy.
func ShellWord(text string) string {
	const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+~"
	if text != "" && text[0] != '~' && strings.Trim(text, harmless) == "" {
		return text
	}
	if shown := Plain(text); shown != text {
		return "$'" + strings.ReplaceAll(shown, "'", `\'`) + "'" // so that the command stays on its line
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
