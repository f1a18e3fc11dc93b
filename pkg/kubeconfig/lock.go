package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

const (
	lockPoll = 20 * time.Millisecond
	// staleAge is the age of a lock whose owner was killed: programs hold it for the moment of a write.
	staleAge = time.Minute
	// staleWait is how long lock waits for a lock that looks stale. Clocks of file servers can be wrong.
	staleWait = time.Second
)

// lockedError says what is in the way. Programs ask for the reason why waiting for it ended; people need the rest.
type lockedError struct {
	path, lock string
	age        time.Duration
	cause      error // nil if the lock is stale
}

func (e *lockedError) Error() string {
	if e.cause == nil {
		return fmt.Sprintf(
			"locking kubeconfig %q: %q exists for %s, and programs hold such a lock for a moment only: the one that made it was killed",
			e.path,
			e.lock,
			e.age.Round(time.Second),
		)
	}
	return fmt.Sprintf(
		"locking kubeconfig %q: %q exists: another program is changing the kubeconfig; if none is, one was killed while it "+
			"did: remove that file",
		e.path,
		e.lock,
	)
}

// Hint says how to go on.
func (e *lockedError) Hint() string {
	quoted := "'" + strings.ReplaceAll(e.lock, "'", `'\''`) + "'"
	return "if no other program is changing the kubeconfig, run: rm -f " + quoted
}

func (e *lockedError) Unwrap() error { return e.cause }

// lock takes the lock that clientcmd, and with it kubectl, takes: a file that only one program can create. It waits
// for another program until ctx ends, and a second if that program seems to have been killed.
func lock(ctx context.Context, path string) (unlock func(), err error) { return lockAs(ctx, path, "") }

// lockAs is lock, and writes the owner into the lock.
func lockAs(ctx context.Context, path, owner string) (unlock func(), err error) {
	name := path + ".lock"
	for started := time.Now(); ; {
		err := createLock(name, owner)
		if err == nil {
			return func() { _ = os.Remove(name) }, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("locking kubeconfig %q: %w", path, err)
		}
		if info, err := os.Stat(name); err == nil && time.Since(started) > staleWait {
			if age := time.Since(info.ModTime()); age > staleAge {
				return nil, &lockedError{path: path, lock: name, age: age}
			}
		}
		select {
		case <-ctx.Done():
			return nil, &lockedError{path: path, lock: name, cause: ctx.Err()}
		case <-time.After(lockPoll):
		}
	}
}
