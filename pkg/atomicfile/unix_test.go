//go:build unix

package atomicfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	must.Do(t, syscall.Mkfifo(fifo, 0o600))
	regular := write(t, filepath.Join(dir, "regular"))
	if content, err := atomicfile.ReadFile(link(t, regular, filepath.Join(dir, "link")), limit); err != nil ||
		string(content) != old {
		t.Errorf("got %q, %v", content, err)
	}
	if _, err := atomicfile.ReadFile(regular, 3); !errors.Is(err, atomicfile.ErrTooLarge) {
		t.Errorf("a file beyond the limit: %v", err)
	}
	for _, path := range []string{fifo, "/dev/zero", dir} {
		if _, err := atomicfile.ReadFile(path, limit); !errors.Is(err, atomicfile.ErrNotRegular) {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := atomicfile.Open(path, limit); !errors.Is(err, atomicfile.ErrNotRegular) {
			t.Errorf("%s, to be replaced: %v", path, err)
		}
	}
}

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
