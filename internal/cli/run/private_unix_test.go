//go:build unix

package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRuntimeDirectory checks that an existing directory that is not private to this user is rejected.
func TestRuntimeDirectory(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		make func(t *testing.T, base string)
		want string
	}{
		"ours": {make: func(t *testing.T, base string) { t.Helper(); must(t, os.Mkdir(base, 0o700)) }},
		"new":  {make: func(*testing.T, string) {}},
		"others may write": {want: "is accessible by others (mode 0777)", make: func(t *testing.T, base string) {
			t.Helper()
			must(t, os.Mkdir(base, 0o700))
			must(t, os.Chmod(base, 0o777))
		}},
		"others may read": {want: "is accessible by others (mode 0755)", make: func(t *testing.T, base string) {
			t.Helper()
			must(t, os.Mkdir(base, 0o700))
			must(t, os.Chmod(base, 0o755))
		}},
		"a link": {want: "is not a directory", make: func(t *testing.T, base string) {
			t.Helper()
			must(t, os.Symlink(t.TempDir(), base))
		}},
		"of another user": {want: "belongs to user 12345", make: func(t *testing.T, base string) {
			t.Helper()
			must(t, os.Mkdir(base, 0o700))
			if err := os.Chown(base, 12345, 12345); err != nil {
				t.Skipf("only root can give a directory away: %v", err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := filepath.Join(t.TempDir(), "pinniped")
			test.make(t, base)
			f, err := newFiles(base, time.Now)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("want %q, got %v", test.want, err)
			}
			if f != nil {
				f.remove()
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
