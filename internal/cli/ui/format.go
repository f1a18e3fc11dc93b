package ui

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
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

// List writes items, indented, below a blank line and a title. It writes nothing if there are none.
func List(out *strings.Builder, title string, items []string) {
	for i, item := range items {
		if i == 0 {
			Fprintf(out, "\n%s:\n", title)
		}
		Fprintf(out, "  %s\n", item)
	}
}

// width counts the visible characters of a cell, which has no escape sequences but ours.
func width(cell string) int { return utf8.RuneCountInString(ours.ReplaceAllString(cell, "")) }

// PrintAs writes result in format "json" or "yaml", with the field names of its json tags.
func PrintAs(w io.Writer, format string, result any) error {
	var encoded []byte
	var err error
	if format == "json" {
		encoded, err = json.MarshalIndent(result, "", "  ")
		encoded = append(encoded, '\n')
	} else {
		encoded, err = yaml.Marshal(result)
	}
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	if _, err := w.Write(encoded); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

// Roughly formats a duration in its largest suitable unit.
func Roughly(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%d days", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d minutes", d/time.Minute)
	default:
		return fmt.Sprintf("%d seconds", d/time.Second)
	}
}
