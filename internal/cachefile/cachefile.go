// Package cachefile is how the caches of logins are kept in files: in the format, and under the lock, of Pinniped's own
// CLI, so that both CLIs can share them.
//
// The files hold private keys and tokens, and are therefore only readable by their owner. They are only ever replaced
// as a whole, so that a reader needs no lock. They may be in a folder that somebody else can write to: what is replaced
// is the file that was read, in the folder in which it was read.
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

	// maxSize bounds what is read. A larger file was not written by Pinniped: it counts as missing, and is not replaced.
	maxSize = 8 << 20
)

// File is one cache file.
type File struct {
	// Path of the file. It and its directory are made when they are needed.
	Path string
	// Kind of the file's content, such as CredentialCache.
	Kind string
}

// content is what a file has: a struct that embeds a metav1.TypeMeta.
type content[T any] interface {
	*T
	GetObjectKind() schema.ObjectKind
}

// Read returns what the file has; nothing but apiVersion and kind if there is no file that we understand.
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
	decoded = new(T) // without what was read before the mistake
	P(decoded).GetObjectKind().SetGroupVersionKind(kind)
	return decoded, false
}

// Change takes the lock for changing the file, which Pinniped's CLI takes, too, and replaces the file by what change
// makes of its content, if that reports true. A file that we do not understand counts as empty; behind a symbolic link,
// it is left alone.
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

// Append adds text to the file at path, which begins again when it has more than limit bytes. No link is followed.
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
	_, err = file.WriteString(text) // one write, which the system does not mix with that of another process
	return err
}

// LockOperation takes a lock for the operation called name, so that only one process at a time performs it. An
// example is a login: the processes that waited then find its result in the file. LockOperation waits until ctx ends.
// Pinniped's own CLI does not take this lock.
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
