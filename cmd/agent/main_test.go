package main

import (
	"bytes"
	"testing"
)

// TestVersion checks both ways to print the version. Scripts compare it with a release's name, so it is alone on its
// line.
func TestVersion(t *testing.T) {
	t.Parallel()
	for _, argument := range []string{"version", "--version"} {
		var out, errOut bytes.Buffer
		if code := run([]string{argument}, &out, &errOut); code != 0 {
			t.Errorf("%s ended with %d: %s", argument, code, errOut.String())
		}
		if got := out.String(); got != version+"\n" {
			t.Errorf("%s printed %q, want %q", argument, got, version+"\n")
		}
	}
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	for _, arguments := range [][]string{{}, {"concerge"}, {"--verbose"}, {"version", "long"}} {
		var out, errOut bytes.Buffer
		if code := run(arguments, &out, &errOut); code != 2 || out.Len() != 0 || errOut.Len() == 0 {
			t.Errorf("%q ended with %d, and printed %q and %q", arguments, code, out.String(), errOut.String())
		}
	}
}
