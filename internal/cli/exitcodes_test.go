package cli_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestExitCodesInHelp checks that the last line of each command's help lists its exit codes as ExitCodes does, and says
// where the others are.
func TestExitCodesInHelp(t *testing.T) {
	t.Parallel()
	known := map[int]bool{}
	for _, one := range ui.ExitCodes() {
		known[one.Code] = true
	}
	if reasons := result.ErrorReason("").Enum(); len(reasons) != len(ui.ExitCodes()) || slices.Contains(reasons, "") {
		t.Errorf("the reasons are %q", reasons)
	}
	number := regexp.MustCompile(`(?:^|, )(\d+) [a-z]`)
	for _, cmd := range commands() {
		if _, list, found := strings.Cut(cmd.Long, "Exit codes: "); found {
			list, ended := strings.CutSuffix(strings.Join(strings.Fields(list), " "), ` (see "pinniped help exit-codes")`)
			codes := number.FindAllStringSubmatch(list, -1)
			if !ended || len(codes) == 0 {
				t.Errorf(`%s: exit codes %q, want "0 done, 3 refused (see "pinniped help exit-codes")"`, cmd.CommandPath(), list)
			}
			for _, match := range codes {
				if code, err := strconv.Atoi(match[1]); err != nil || !known[code] {
					t.Errorf("%s: nothing says what exit code %s means", cmd.CommandPath(), match[1])
				}
			}
		}
	}
}

// TestExitCodesAreDocumented compares `pinniped help exit-codes` and docs/reference/exit-codes.md with ExitCodes.
func TestExitCodesAreDocumented(t *testing.T) {
	t.Parallel()
	f, out, _ := newFactory("help", "exit-codes")
	if code := cli.Main(t.Context(), f); code != ui.ExitDone {
		t.Fatalf("exit code %d", code)
	}
	page := must.Get(os.ReadFile("../../docs/reference/exit-codes.md"))(t)
	for _, one := range ui.ExitCodes() {
		row := fmt.Sprintf("| %d | %s | %s |\n", one.Code, one.Meaning, one.Example)
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/reference/exit-codes.md has no row %s", row)
		}
		if text := strings.ReplaceAll(one.Meaning, "`", `"`); !strings.Contains(out.String(), text) {
			t.Errorf("the help has no %q", text)
		}
	}
}

// TestReasons checks that each error that programs can tell apart has a reason, even if two share an exit code.
func TestReasons(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err    error
		reason result.ErrorReason
		code   int
	}{
		{ui.WithExitCode(errors.New("later"), ui.ExitNotDue), "notDue", 6},
		{ui.WithHint(ui.WithReason(errors.New("other"), ui.ExitDiffers, ui.ReasonDiffers), "write it"), "differs", 6},
		{ui.Usage(ui.WithReason(errors.New("other"), ui.ExitDiffers, ui.ReasonDiffers)), "usage", 2},
		{ui.WithExitCode(errors.New("unlisted"), 99), result.ReasonOther, 99},
		{errors.New("failed"), "failed", 1},
	} {
		if got := result.ErrorOf(tt.err); got.Reason != tt.reason || got.ExitCode != tt.code {
			t.Errorf("got %+v, want %s and %d", got, tt.reason, tt.code)
		}
	}
}
