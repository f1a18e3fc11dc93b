// Package cachefile is how the caches of logins are kept in files: in the format, and under the lock, of Pinniped's own
// CLI, so that both CLIs can share them.
//
// The files hold private keys and tokens, and are therefore only readable by their owner. They are only ever replaced
// as a whole, so that a reader needs no lock.
package cachefile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

const (
	apiVersion = "config.supervisor.pinniped.dev/v1alpha1"

	lockTimeout = 10 * time.Second
	lockDelay   = 5 * time.Millisecond

	// maxSize bounds what is read. A larger file was not written by Pinniped: it counts as missing, and the next
	// write replaces it.
	maxSize = 8 << 20
)

// File is one cache file.
type File struct {
	// Path of the file. It and its directory are made when they are needed.
	Path string
	// Kind of the file's content, such as CredentialCache.
	Kind string
}

// TypeMeta returns the apiVersion and the kind that the content of the file must have.
func (f File) TypeMeta() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: apiVersion, Kind: f.Kind}
}

// Read decodes the file into content, a pointer to a struct of which typeMeta is a part. It reports false, and leaves
// content in an undefined state, if there is no file that we understand.
func (f File) Read(content any, typeMeta *metav1.TypeMeta) bool {
	text, err := atomicfile.ReadFile(f.Path, maxSize)
	if err != nil {
		return false
	}
	return yaml.Unmarshal(text, content) == nil && *typeMeta == f.TypeMeta()
}

// Write replaces the file. The caller holds the lock.
func (f File) Write(content any) error {
	text, err := yaml.Marshal(content)
	if err != nil {
		return fmt.Errorf("encoding the %s %q: %w", f.Kind, f.Path, err)
	}
	if err = atomicfile.Write(f.Path, text); err != nil {
		return fmt.Errorf("writing the %s: %w", f.Kind, err)
	}
	return nil
}

// Lock takes the lock for changing the file, which Pinniped's CLI takes, too. It is held for moments only.
func (f File) Lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	return f.lock(ctx, f.Path+".lock")
}

// LockOperation takes a lock for the operation called name, so that only one process at a time performs it. An example is
// a login: the processes that waited then find its result in the file. LockOperation waits until ctx ends. Pinniped's own
// CLI does not take this lock.
func (f File) LockOperation(ctx context.Context, name string) (unlock func(), err error) {
	return f.lock(ctx, f.Path+"."+name+".lock")
}

func (f File) lock(ctx context.Context, path string) (unlock func(), err error) {
	if err = os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of the %s: %w", f.Kind, err)
	}
	lock := flock.New(path, flock.SetPermissions(0o600))
	locked, err := lock.TryLockContext(ctx, lockDelay)
	if err == nil && !locked {
		err = errors.New("it is held by another process")
	}
	if err != nil {
		return nil, fmt.Errorf("locking the %s %q: %w", f.Kind, f.Path, err)
	}
	return func() { _ = lock.Unlock() }, nil
}
