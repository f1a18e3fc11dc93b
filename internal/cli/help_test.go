package cli_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// TestHelp checks that the help of every command fits on two screens of 50 lines, has each flag once, and refers to
// "pinniped help COMMAND" if it leaves something out.
func TestHelp(t *testing.T) {
	t.Parallel()
	const columns, lines = 120, 2 * 50
	run := func(args ...string) string {
		f, out, errOut := newFactory(args...)
		if code := cli.Main(t.Context(), f); code != ui.ExitDone {
			t.Fatalf("%q: %d, %s", args, code, errOut)
		}
		return out.String()
	}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		help, all := run(append(path, "--help")...), run(append([]string{"help"}, path...)...)
		height := 0
		for line := range strings.Lines(help) {
			height += 1 + (len(line)-2)/columns
		}
		if height > lines {
			t.Errorf("the help of %q has %d lines", path, height)
		}
		cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			shown := regexp.MustCompile(`(?m)^  (?:    |-., )--` + regexp.QuoteMeta(flag.Name) + `\b[^-]`)
			if got := len(shown.FindAllString(help, -1)); !flag.Hidden && got != 1 {
				t.Errorf("the help of %q has --%s %d times", path, flag.Name, got)
			}
		})
		if !strings.Contains(all, strings.TrimSpace(cmd.Long)) {
			t.Errorf("%q: not all of the description is in pinniped help", path)
		}
		for _, below := range cmd.Commands() {
			if below.Name() != "help" && !below.Hidden {
				walk(below)
			}
		}
	}
	f, _, _ := newFactory()
	walk(cli.New(f))
}

// TestPinnipedsNames checks that the flag names of Pinniped's CLI are accepted.
func TestPinnipedsNames(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, want string }{
		{"get kubeconfig --concierge-endpoint http://x", `invalid --endpoint "http://x"`},
		{"get kubeconfig --endpoint http://x", `invalid --endpoint "http://x"`},
		{"get kubeconfig --concierge-ca-bundle /none", `for "--ca-bundle" flag`},
	} {
		f, _, errOut := newFactory(strings.Fields(test.args)...)
		if code := cli.Main(t.Context(), f); code == ui.ExitDone || !strings.Contains(errOut.String(), test.want) {
			t.Errorf("%s: want %q, got %d, %s", test.args, test.want, code, errOut)
		}
	}
}
