package login

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestBrowserVariable(t *testing.T) {
	t.Parallel()
	spaced := filepath.Join(t.TempDir(), "my browser")
	if err := os.WriteFile(spaced, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string][]string{
		"":                          nil,
		spaced:                      {spaced},
		"/no/browser:" + spaced:     {spaced},
		"/no/browser:sh -c":         {"sh", "-c"},
		"sh --new-window %s":        {"sh", "--new-window", "%s"},
		"/no/browser -x:/no/either": {"/no/browser", "-x"},
	} {
		if got := chosenBrowser(value, "linux"); !slices.Equal(got, want) {
			t.Errorf("%q: want %q, got %q", value, want, got)
		}
	}
	if got := withAddress([]string{"-a", "url=%s"}, "https://x"); !slices.Equal(got, []string{"-a", "url=https://x"}) {
		t.Errorf("got %q", got)
	}
	if got := withAddress(nil, "https://x"); !slices.Equal(got, []string{"https://x"}) {
		t.Errorf("got %q", got)
	}
}
