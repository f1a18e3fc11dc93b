package run

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

const (
	directoryPrefix = "run-"
	lockName        = "lock"
	kubeconfigName  = "kubeconfig"
	tokenName       = "token"
	certificateName = "client.pem" // certificate and key in one file, so that they always match
)

// abandonedAfter is the minimum age of a directory without a lock to count as abandoned. The lock is created right
// after the directory.
const abandonedAfter = time.Minute

// files is the directory of one run.
type files struct {
	dir  string
	lock *flock.Flock
}

// newFiles creates a directory in base, and deletes those of killed runs.
func newFiles(base string, now func() time.Time) (*files, error) {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	if err := checkPrivate(base); err != nil {
		return nil, err
	}
	sweep(base, now())
	dir, err := os.MkdirTemp(base, directoryPrefix)
	if err != nil {
		return nil, err
	}
	f := &files{dir: dir, lock: flock.New(filepath.Join(dir, lockName), flock.SetPermissions(0o600))}
	if _, err := f.lock.TryLock(); err != nil {
		f.remove()
		return nil, err
	}
	return f, nil
}

// sweep deletes the files of killed runs. A running one holds its lock. What cannot be deleted is left to the next run;
// its credentials expire within minutes.
func sweep(base string, now time.Time) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !entry.IsDir() || !strings.HasPrefix(entry.Name(), directoryPrefix) {
			continue
		}
		dir := filepath.Join(base, entry.Name())
		lock := filepath.Join(dir, lockName)
		if _, err := os.Stat(lock); err != nil {
			if now.Sub(info.ModTime()) > abandonedAfter {
				_ = os.RemoveAll(dir)
			}
			continue
		}
		held := flock.New(lock)
		if free, err := held.TryLock(); err != nil || !free {
			continue
		}
		_ = held.Unlock() // Windows does not delete locked files
		_ = os.RemoveAll(dir)
	}
}

func (f *files) path(name string) string { return filepath.Join(f.dir, name) }

// write replaces a file atomically. Only its owner can read it.
func (f *files) write(name string, content []byte) error {
	return atomicfile.Write(f.path(name), content)
}

func (f *files) remove() {
	_ = f.lock.Unlock()
	_ = os.RemoveAll(f.dir)
}
