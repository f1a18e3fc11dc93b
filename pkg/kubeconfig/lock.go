package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	lockPoll = 20 * time.Millisecond
	// staleAge is the age at which a lock is considered stale: programs hold it only while they write.
	staleAge = time.Minute
	// staleWait is how long lock waits for a stale lock, because clocks of file servers may be wrong.
	staleWait = time.Second
)

// lockedError describes the lock. It wraps the reason why waiting ended, for programs.
type lockedError struct {
	path  string
	age   time.Duration
	cause error // nil if the lock is stale
}

func (e *lockedError) Error() string {
	text := fmt.Sprintf("locking kubeconfig %q: the lock file %q ", e.path, e.path+".lock")
	if e.cause == nil {
		return text + fmt.Sprintf("has existed for %s, but programs hold the lock only briefly, so the "+
			"program that created it was killed", e.age.Round(time.Second))
	}
	return text + "exists, so another program is changing the kubeconfig, or was killed while it did so; if no such " +
		"program is running, remove the lock file"
}

// Hint says how to fix it.
func (e *lockedError) Hint() string {
	quoted := "'" + strings.ReplaceAll(e.path+".lock", "'", `'\''`) + "'"
	return "if no other program is changing the kubeconfig, run: rm -f " + quoted
}

func (e *lockedError) Unwrap() error { return e.cause }

// lock acquires the lock that clientcmd, and thus kubectl, uses: a file that only one program can create. It waits
// until ctx ends, or one second if the lock is stale. The directory is held open, so that unlock removes the same file.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	name := filepath.Base(path) + ".lock"
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("locking kubeconfig %q: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = root.Close()
		}
	}()
	for started := time.Now(); ; {
		file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL, 0)
		if err == nil {
			_ = file.Close()
			return func() { _ = root.Remove(name); _ = root.Close() }, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, &folderError{path: path, err: err}
		}
		if info, err := root.Lstat(name); err == nil && time.Since(started) > staleWait {
			if age := time.Since(info.ModTime()); age > staleAge {
				return nil, &lockedError{path: path, age: age}
			}
		}
		select {
		case <-ctx.Done():
			return nil, &lockedError{path: path, cause: ctx.Err()}
		case <-time.After(lockPoll):
		}
	}
}

// folderError says which directory must be writable.
type folderError struct {
	path string
	err  error
}

func (e *folderError) Error() string {
	return fmt.Sprintf("locking kubeconfig %q: creating a file in %q: %v", e.path, filepath.Dir(e.path), rootCause(e.err))
}

func (e *folderError) Unwrap() error { return e.err }

// Hint says how to fix it.
func (e *folderError) Hint() string {
	return fmt.Sprintf("the folder %q must be writable: kubectl and this program create a lock there while they "+
		"change the kubeconfig", filepath.Dir(e.path))
}

func rootCause(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}
