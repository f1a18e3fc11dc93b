package ui

import (
	"io"
	"strconv"
	"strings"
	"unicode"
)

// Plain returns text that comes from a file or a cluster as it can be shown: on one line, and without anything that a
// terminal takes for a command. Names of contexts may have line ends and escape sequences in them.
func Plain(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// PlainTable is Table for cells that come from files or a cluster, see Plain.
func PlainTable(w io.Writer, header []string, rows [][]string) error {
	shown := make([][]string, len(rows))
	for i, row := range rows {
		for _, cell := range row {
			shown[i] = append(shown[i], Plain(cell))
		}
	}
	return Table(w, header, shown)
}
