package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMan writes every manual page, and looks for lines that troff would take for requests which were not meant.
func TestMan(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "man")
	if err := writeManPages(folder); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(folder, "*.1"))
	if err != nil || !slices.Contains(pages, filepath.Join(folder, "pinniped-ip-tls-set.1")) {
		t.Fatalf("%q, %v", pages, err)
	}
	known := []string{".TH", ".SH", ".PP", ".B", ".BR", ".nf", ".fi"}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			request, _, _ := strings.Cut(line, " ")
			if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !slices.Contains(known, request) {
				t.Errorf("%s: %q is no macro that is meant", filepath.Base(page), line)
			}
		}
	}
	if got, want := roff(".a -b\n'c \\d"), "\\&.a \\-b\n\\&'c \\ed"; got != want {
		t.Errorf("roff gives %q, want %q", got, want)
	}
}
