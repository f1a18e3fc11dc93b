package cli_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// TestExitCodesInHelp compares the exit codes that the help of each command names with the one list of them.
func TestExitCodesInHelp(t *testing.T) {
	t.Parallel()
	f, _, _ := newFactory()
	known := map[int]bool{}
	for _, one := range ui.ExitCodes() {
		known[one.Code] = true
	}
	if reasons := result.ErrorReason("").Enum(); len(reasons) != len(known) || slices.Contains(reasons, "") {
		t.Errorf("the reasons are %q", reasons)
	}
	number := regexp.MustCompile(`(?:^|[,;:(] )(\d+) [a-z]`)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if _, list, found := strings.Cut(cmd.Long, "Exit codes: "); found {
			for _, match := range number.FindAllStringSubmatch(strings.Join(strings.Fields(list), " "), -1) {
				if code, err := strconv.Atoi(match[1]); err != nil || !known[code] {
					t.Errorf("%s: nothing says what exit code %s means", cmd.CommandPath(), match[1])
				}
			}
		}
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(cli.New(f))
}
