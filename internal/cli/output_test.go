package cli_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// TestOutputIsTheSameEverywhere checks that --output of every command has the same formats, defaults to text, and
// rejects other values with the same error.
func TestOutputIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	others := map[string]string{ // additional formats of some commands
		"pinniped migrate check": ` "commands"`,
	}
	needed := map[string][]string{ // flags without which a command fails first
		"pinniped ip-tls set":        {"--secret", "s"},
		"pinniped ip-tls explain":    {"n/s"},
		"pinniped ip-tls delegate":   {"n/s", "--to", "a"},
		"pinniped kubeconfig rotate": {"a.yaml"},
		"pinniped kubeconfig ls":     {"a.yaml"},
		"pinniped logout":            {"--issuer", "https://issuer.example.com"},
		"pinniped ip-tls manifest":   {"--issuer", "Issuer/i", "--secret", "s", "--external-endpoint", "a.example.com"},
	}
	seen := 0
	for _, cmd := range commands() {
		flag, path := cmd.Flags().Lookup("output"), cmd.CommandPath()
		if flag == nil || !strings.HasPrefix(flag.Usage, "output format: ") {
			continue // it is a file name
		}
		seen++
		want := fmt.Sprintf(
			`error: invalid value "xml" for --output, supported values are ["text" "json" "yaml"%s]`,
			others[path],
		)
		if flag.DefValue == "yaml" { // manifests are always YAML
			want = `error: invalid value "xml" for --output, supported values are ["yaml" "json"]`
		} else if flag.DefValue != "text" {
			t.Errorf("%s: the default is %q", path, flag.DefValue)
		}
		args := append(strings.Fields(path)[1:], needed[path]...)
		if cmd.Flags().Lookup("kubeconfig") != nil { // contact no cluster
			args = append(args, "--kubeconfig", filepath.Join(t.TempDir(), "nowhere.yaml"))
		}
		f, _, errOut := newFactory(append(args, "-o", "xml")...)
		if code := cli.Main(t.Context(), f); code != ui.ExitUsage || !strings.HasPrefix(errOut.String(), want+"\n") {
			t.Errorf("%s -o xml: want 2 and %q, got %d and %q", path, want, code, errOut)
		}
		for _, format := range []string{"text", "table", "json", "yaml"} {
			if flag.DefValue == "yaml" && (format == "text" || format == "table") {
				continue
			}
			f, _, errOut := newFactory(append(args, "-o", format)...)
			_ = cli.Main(t.Context(), f) // most fail without a kubeconfig
			if strings.Contains(errOut.String(), "invalid value") {
				t.Errorf("%s -o %s is refused: %s", path, format, errOut)
			}
		}
	}
	if seen < 15 {
		t.Errorf("want all commands with results, got %d", seen)
	}
}
