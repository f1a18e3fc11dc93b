package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

func limitsFrom(t *testing.T, file string, args ...string) (budget.Limits, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pinniped.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	config, err := LoadConfig(path, flags)
	if err != nil {
		return budget.Limits{}, err
	}
	return config.Limits.limits()
}

func TestLimits(t *testing.T) {
	t.Parallel()
	got, err := limitsFrom(t, "{}")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(budget.Defaults(), got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	got, err = limitsFrom(
		t,
		"limits: {bytes: {perUser: 16Mi}, streams: {total: 500, perAddress: 0, perUser: 400}}",
		"--limit-connections-per-user=7",
	)
	if err != nil {
		t.Fatal(err)
	}
	want := budget.Defaults()
	want[budget.Bytes][budget.PerUser] = 16 << 20
	want[budget.Streams] = [budget.NumShares]int64{
		budget.Total:           500,
		budget.PerUser:         400,
		budget.Unauthenticated: want[budget.Streams][budget.Unauthenticated],
	}
	want[budget.Connections][budget.PerUser] = 7
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBadLimits(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ file, want string }{
		{"limits: {bytes: {perUser: many}}", `limits.bytes.perUser is "many"`},
		{"limits: {requests: {total: -1}}", `limits.requests.total is "-1"`},
		{"limits: {requests: {perUser: 5000}}", "limits.requests.perUser is 5000: that is more than limits.requests.total, " +
			"which is 2048"},
		{"limits: {requests: {perCluster: 5}}", "unknown keys: limits.requests.percluster"},
		{"limits: {resets: {total: 5}}", "unknown keys: limits.resets.total"},
	} {
		if _, err := limitsFrom(t, test.file); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: want %q, got %v", test.file, test.want, err)
		}
	}
}

// TestLimitsAreDocumented compares the table in docs/reference/agent.md with the defaults. UPDATE_GOLDEN=1 rewrites
// the table.
func TestLimitsAreDocumented(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- this table is made by go test ./internal/agent -->\n", "<!-- end of this table -->"
	path := filepath.Join("..", "..", "docs", "reference", "agent.md")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(content), begin)
	documented, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s has no table of limits", path)
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(before+begin+limitsTable()+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(documented, limitsTable()); diff != "" {
		t.Errorf("%s (-documented +default), UPDATE_GOLDEN=1 accepts it:\n%s", path, diff)
	}
}
