package kubeconfig

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// RotateFile is Rotate for the file at path, which is replaced as a whole or not at all, and keeps its permissions and
// owner. While it works it holds the lock that kubectl takes (path with ".lock" appended), for which it waits until ctx
// ends. With dryRun it only says what it would do.
func RotateFile(ctx context.Context, path string, to Target, dryRun bool) (*Rotation, error) {
	rotation, err := readAndRotate(path, to) // most files of a fleet need no lock: there is nothing to do
	if err != nil || dryRun || !rotation.Changed() {
		return rotation, err
	}
	unlock, err := lock(ctx, path)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if rotation, err = readAndRotate(path, to); err != nil || !rotation.Changed() {
		return rotation, err
	}
	if err := atomicfile.Update(path, rotation.Content); err != nil {
		return nil, fmt.Errorf("writing kubeconfig %q: %w", path, err)
	}
	return rotation, nil
}

func readAndRotate(path string, to Target) (*Rotation, error) {
	content, err := readBounded(path)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	rotation, err := Rotate(content, to)
	if err != nil {
		return nil, fmt.Errorf("rotating kubeconfig %q: %w", path, err)
	}
	return rotation, lookIntoCAFiles(path, to, rotation)
}

// lookIntoCAFiles makes entries current whose CA file, which Rotate does not read, has all of the target's CA bundle
// already.
func lookIntoCAFiles(path string, to Target, rotation *Rotation) error {
	if len(to.CABundle) == 0 ||
		!slices.ContainsFunc(rotation.Entries, func(e Entry) bool { return e.Code == SkipCAFile }) {
		return nil
	}
	config, err := Load(path)
	if err != nil {
		return err
	}
	for _, trust := range Trusts(config, to.Endpoint) {
		at := slices.IndexFunc(
			rotation.Entries,
			func(e Entry) bool { return e.Kind == trust.Kind && e.Name == trust.Name && e.Code == SkipCAFile },
		)
		if at >= 0 && trust.Err == nil && hasAll(trust.CABundle, to.CABundle) {
			rotation.Entries[at] = Entry{Kind: trust.Kind, Name: trust.Name, Outcome: Current}
		}
	}
	return nil
}

// hasAll says whether every certificate of some is in bundle.
func hasAll(bundle, some []byte) bool {
	for block, rest := pem.Decode(some); block != nil; block, rest = pem.Decode(rest) {
		found := false
		for other, more := pem.Decode(bundle); other != nil && !found; other, more = pem.Decode(more) {
			found = bytes.Equal(other.Bytes, block.Bytes)
		}
		if !found {
			return false
		}
	}
	return true
}

// readBounded reads a regular file that is not too big to be a kubeconfig.
func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%w: it is not a regular file", ErrNotKubeconfig)
	case info.Size() > maxSize:
		return nil, fmt.Errorf("%w: it has %d bytes", ErrNotKubeconfig, info.Size())
	}
	return os.ReadFile(path)
}

// lockedError says who is in the way. Why waiting for it ended matters to programs, and not to people.
type lockedError struct {
	path, lock string
	cause      error
}

func (e *lockedError) Error() string {
	return fmt.Sprintf(
		"locking kubeconfig %q: %q exists: another program is changing the kubeconfig; if none is, one was killed while it "+
			"did: remove that file",
		e.path,
		e.lock,
	)
}

func (e *lockedError) Unwrap() error { return e.cause }

const lockPoll = 20 * time.Millisecond

// lock is clientcmd's: a file that only one can create.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	name := path + ".lock"
	for {
		file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL, 0)
		if err == nil {
			_ = file.Close()
			return func() { _ = os.Remove(name) }, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("locking kubeconfig %q: %w", path, err)
		}
		select {
		case <-ctx.Done():
			return nil, &lockedError{path: path, lock: name, cause: ctx.Err()}
		case <-time.After(lockPoll):
		}
	}
}
