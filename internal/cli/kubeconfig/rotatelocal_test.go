package kubeconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// TestRotateNamesLocalMistakesFirst checks that with an unreachable cluster local errors are reported first, and that
// the cluster is not contacted if nothing is left to do.
func TestRotateNamesLocalMistakesFirst(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, content := range map[string]string{
		"notes.txt": "Nothing to see here.\n", "good.yaml": "kind: Config\nclusters: []\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name string
		args []string
		code int
		says []string // texts in the error
	}{
		{name: "a file that is not there", args: []string{"nope.yaml"}, code: 1, says: []string{"nope.yaml", "no such file"}},
		{
			name: "several files of no use", args: []string{"nope.yaml", "notes.txt"}, code: 1,
			says: []string{"rotating kubeconfigs: 2 of 2 failed"},
		},
		{
			name: "a file of no use", args: []string{"notes.txt", "--kubeconfig-context", "x"}, code: 1,
			says: []string{"notes.txt", "not a kubeconfig"},
		},
		{
			name: "a cluster that cannot be asked", args: []string{"good.yaml", "--kubeconfig-context", "none"}, code: 1,
			says: []string{"no such cluster"},
		},
		{
			name: "a CA bundle that is not there", args: []string{"good.yaml", "--ca-bundle", filepath.Join(folder, "no.pem")},
			code: ui.ExitUsage, says: []string{"reading CA bundle", "no.pem", "no such file"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			args := make([]string, len(test.args))
			for i, arg := range test.args {
				if args[i] = arg; !strings.HasPrefix(arg, "-") && filepath.IsLocal(arg) {
					args[i] = filepath.Join(folder, arg)
				}
			}
			ran := runRotate(t, nil, args...)
			if ran.err == nil || ui.ExitCodeOf(ran.err) != test.code {
				t.Fatalf("want code %d, got %v", test.code, ran.err)
			}
			for _, part := range test.says {
				if !strings.Contains(ran.err.Error(), part) {
					t.Errorf("want %q in the error, got %v", part, ran.err)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(folder, "*.lock")); len(left) > 0 {
				t.Errorf("want no locks left, got %q", left)
			}
		})
	}
}
