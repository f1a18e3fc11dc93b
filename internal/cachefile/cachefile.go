// Package cachefile reads and writes the login cache files in the format, and under the lock, of Pinniped's own CLI, so
// that both CLIs can share them.
//
// The files hold private keys and tokens; only their owner can read them. Writes replace the whole file, so readers
// need no lock. The directory may be writable by other users: a write replaces the file that was read, in the directory
// from which it was read, even if either was swapped for a link.
package cachefile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

const (
	apiVersion = "config.supervisor.pinniped.dev/v1alpha1"

	lockTimeout = 10 * time.Second
	lockDelay   = 5 * time.Millisecond

	// maxSize is the most that is read, in bytes. A larger file is not Pinniped's: it counts as missing and is not
	// replaced.
	maxSize = 8 << 20
)

// File is one cache file.
type File struct {
	// Path of the file. The file and its directory are created when needed.
	Path string
	// Kind of the file's content, such as CredentialCache.
	Kind string
}

// content is the content of a file: a struct that embeds a metav1.TypeMeta.
type content[T any] interface {
	*T
	GetObjectKind() schema.ObjectKind
}

// Read returns the content of the file, or only apiVersion and kind if the file is missing or not understood.
func Read[T any, P content[T]](f File) *T {
	text, err := atomicfile.ReadFile(f.Path, maxSize)
	if err != nil {
		text = nil
	}
	decoded, _ := decode[T, P](f, text)
	return decoded
}

func decode[T any, P content[T]](f File, text []byte) (decoded *T, understood bool) {
	kind := schema.FromAPIVersionAndKind(apiVersion, f.Kind)
	decoded = new(T)
	if yaml.Unmarshal(text, decoded) == nil && P(decoded).GetObjectKind().GroupVersionKind() == kind {
		return decoded, true
	}
	decoded = new(T) // drop what was decoded before the error
	P(decoded).GetObjectKind().SetGroupVersionKind(kind)
	return decoded, false
}

// Change calls change with the content of the file, and replaces the file if change returns true. It holds the lock
// that Pinniped's CLI also takes. A file that is not understood counts as empty, but is an error if the path is a
// symbolic link.
func Change[T any, P content[T]](ctx context.Context, f File, change func(*T) bool) error {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	unlock, err := f.lock(ctx, f.Path+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	file, err := atomicfile.Open(f.Path, maxSize)
	if err != nil {
		return fmt.Errorf("reading the %s: %w", f.Kind, err)
	}
	defer file.Close()
	decoded, understood := decode[T, P](f, file.Content)
	if file.Linked && !understood && len(file.Content) > 0 {
		return fmt.Errorf("the link %q points to a file that is not a %s; nothing was written", f.Path, f.Kind)
	}
	if !change(decoded) {
		return nil
	}
	text, err := yaml.Marshal(decoded)
	if err != nil {
		return fmt.Errorf("encoding the %s %q: %w", f.Kind, f.Path, err)
	}
	if err = file.ReplacePrivate(text); err != nil {
		return fmt.Errorf("writing the %s %q: %w", f.Kind, f.Path, err)
	}
	return nil
}

// Append adds text to the file at path. A file larger than limit bytes is truncated first. Append follows no link.
func Append(path, text string, limit int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|atomicfile.NoFollow, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return atomicfile.ErrNotRegular
	case info.Size() > limit:
		if err = file.Truncate(0); err != nil {
			return err
		}
	}
	_, err = file.WriteString(text) // a single write: other processes' text is not mixed in
	return err
}

// LockOperation locks the operation called name, such as a login, so that one process at a time performs it; the others
// then find its result in the file. It waits until ctx ends. Pinniped's own CLI does not take this lock.
func (f File) LockOperation(ctx context.Context, name string) (unlock func(), err error) {
	return f.lock(ctx, f.Path+"."+name+".lock")
}

func (f File) lock(ctx context.Context, path string) (unlock func(), err error) {
	if err = os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of the %s: %w", f.Kind, err)
	}
	lock := flock.New(path, flock.SetPermissions(0o600), flock.SetFlag(os.O_CREATE|os.O_RDWR|atomicfile.NoFollow))
	locked, err := lock.TryLockContext(ctx, lockDelay)
	if err == nil && !locked {
		err = errors.New("it is held by another process")
	}
	if err != nil {
		return nil, fmt.Errorf("locking the %s %q: %w", f.Kind, f.Path, err)
	}
	return func() { _ = lock.Unlock() }, nil
}
