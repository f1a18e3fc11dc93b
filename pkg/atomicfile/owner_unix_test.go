//go:build unix

package atomicfile_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestReplaceKeepsTheOwner(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	path := write(t, filepath.Join(t.TempDir(), "theirs"))
	must.Do(t, os.Chown(path, 1234, 5678))
	must.Do(t, replace(t, path, nil))
	info := must.Get(os.Stat(path))(t)
	if owner := info.Sys().(*syscall.Stat_t); owner.Uid != 1234 || owner.Gid != 5678 {
		t.Errorf("it belongs to %d:%d now", owner.Uid, owner.Gid)
	}
}
