package ui

import (
	"strings"
	"testing"
)

// TestBarElsewhere checks that a log gets a line per wave, and one at the end.
func TestBarElsewhere(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	bar := (&Progress{Out: &out}).Bar(5, 2, "clusters asked")
	for i := range 5 {
		bar.Step(i == 2)
	}
	bar.End()
	want := "• 2 of 5 clusters asked\n• 4 of 5 clusters asked, 1 failed\n• 5 of 5 clusters asked, 1 failed\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

// TestBarOnATerminal checks that a terminal gets one line that is redrawn, and only the totals at the end.
func TestBarOnATerminal(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	bar := (&Progress{Out: &out, Spin: true}).Bar(4, 1, "clusters asked")
	if got := bar.text(); got != "["+strings.Repeat("·", barWidth)+"] 0 of 4 clusters asked" {
		t.Errorf("at the beginning: %q", got)
	}
	for range 3 {
		bar.Step(false)
	}
	if got := bar.text(); got != "["+strings.Repeat("█", 18)+strings.Repeat("·", 6)+"] 3 of 4 clusters asked" {
		t.Errorf("after three: %q", got)
	}
	bar.End()
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "\x1b[K• 3 of 4 clusters asked\n") {
		t.Errorf("what stays: %q", got)
	}
	silent := (&Progress{}).Bar(1, 1, "x")
	silent.Step(false)
	silent.End()
}
