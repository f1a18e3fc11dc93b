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
	certificateName = "client.pem" // certificate and key: one file, so that a reader never gets halves of two pairs
)

// abandonedAfter is how old the directory of a run without a lock must be to be taken for abandoned: the lock is made
// right after the directory.
const abandonedAfter = time.Minute

// files is the directory of one run.
type files struct {
	dir  string
	lock *flock.Flock
}

// newFiles makes a directory below base, and deletes those of runs that were killed before they could do so.
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

// sweep deletes what killed runs have left. A living run holds its lock. What cannot be deleted stays: another run
// tries again, and the credentials there live for minutes.
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
		_ = held.Unlock() // Windows does not delete a locked file
		_ = os.RemoveAll(dir)
	}
}

func (f *files) path(name string) string { return filepath.Join(f.dir, name) }

// write replaces a file as a whole. Only its owner can read it.
func (f *files) write(name string, content []byte) error {
	return atomicfile.Write(f.path(name), content)
}

func (f *files) remove() {
	_ = f.lock.Unlock()
	_ = os.RemoveAll(f.dir)
}
