package session_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// TestInputHints checks the hint for each kind of unusable input.
func TestInputHints(t *testing.T) {
	t.Parallel()
	file := func(path, stdin string) error {
		_, err := session.ReadPEMFile("the certificate", path, strings.NewReader(stdin))
		return err
	}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"a missing file":            {file(filepath.Join(t.TempDir(), "none"), ""), "check the path"},
		"a folder":                  {file(t.TempDir(), ""), "not a folder"},
		"nothing on stdin":          {file("-", " \n"), "name the PEM file that holds it"},
		"too much":                  {file("-", strings.Repeat("x", 16<<20+1)), "the right file"},
		"an endpoint with a scheme": {session.ValidateEndpoint("endpoint", "https://proxy.example.com"), "write a DNS name"},
	} {
		if got := ui.HintOf(test.err); !strings.Contains(got, test.want) || ui.ExitCodeOf(test.err) != ui.ExitUsage {
			t.Errorf("%s: got %v, hint %q", name, test.err, got)
		}
	}
}
