//go:build unix

package atomicfile_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestReplaceKeepsTheOwner(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	path := write(t, filepath.Join(t.TempDir(), "theirs"))
	if err := os.Chown(path, 1234, 5678); err != nil {
		t.Fatal(err)
	}
	if err := replace(t, path, nil); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t); owner.Uid != 1234 || owner.Gid != 5678 {
		t.Errorf("it belongs to %d:%d now", owner.Uid, owner.Gid)
	}
}
