package ui

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table prints rows in columns, three spaces apart, under an upper-case header. The last column is not padded, so it
// may hold long messages. Cells may be coloured with Style, and are otherwise made safe to print.
func Table(w io.Writer, header []string, rows [][]string) error {
	widths := make([]int, len(header))
	all := append([][]string{header}, rows...)
	for _, row := range all {
		for i, cell := range row {
			if i < len(widths) {
				widths[i] = max(widths[i], width(coloured(cell)))
			}
		}
	}
	var out strings.Builder
	for n, row := range all {
		var line strings.Builder
		for i, cell := range row {
			if n == 0 {
				cell = strings.ToUpper(cell)
			}
			cell = coloured(cell)
			line.WriteString(cell)
			if i < len(row)-1 && i < len(widths) {
				line.WriteString(strings.Repeat(" ", widths[i]-width(cell)+3))
			}
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}

// width counts the visible characters of a cell.
func width(cell string) int {
	n := utf8.RuneCountInString(cell)
	for {
		start := strings.Index(cell, "\x1b[")
		if start < 0 {
			return n
		}
		end := strings.IndexByte(cell[start:], 'm')
		if end < 0 {
			return n
		}
		n -= end + 1
		cell = cell[start+end+1:]
	}
}
