package kubeconfig

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// createLock makes the lock with its owner in it in one step, where the file system has hard links: a process may be
// killed at any moment, and the lock must tell then whose it was.
func createLock(name, owner string) error {
	if owner == "" {
		file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL, 0)
		if err != nil {
			return err
		}
		return file.Close()
	}
	if _, err := os.Lstat(name); err == nil {
		return fs.ErrExist
	}
	temp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }()
	if _, err := temp.WriteString(owner + "\n"); err != nil {
		return errors.Join(err, temp.Close())
	}
	if err := temp.Close(); err != nil {
		return err
	}
	err = os.Link(temp.Name(), name)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(owner + "\n")
	return errors.Join(err, file.Close())
}

// ClearLeftovers removes what a process that was killed while it changed the kubeconfig at path has left behind: its
// lock, which is known by its owner, and temporary files, which have parts of the kubeconfig in them. A lock of another
// program stays, and is waited for until ctx ends.
func ClearLeftovers(ctx context.Context, path, owner string) error {
	name := path + ".lock"
	if owner != "" && lockOwner(name) == owner {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	unlock, err := lockAs(ctx, path, owner) // temporary files of a process that holds the lock are not left over
	if err != nil {
		return err
	}
	defer unlock()
	actual := path // the temporary file is beside the file itself, and not beside a link to it
	if target, err := filepath.EvalSymlinks(path); err == nil {
		actual = target
	}
	for _, base := range []string{actual, name} {
		left, err := filepath.Glob(filepath.Join(globbed(filepath.Dir(base)), "."+globbed(filepath.Base(base))+".*.tmp"))
		if err != nil {
			return err
		}
		for _, file := range left {
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// lockOwner returns what is in a lock; empty for locks of kubectl, which nobody can read, and when there is none.
func lockOwner(name string) string {
	file, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	content, _ := io.ReadAll(io.LimitReader(file, 1<<10))
	return strings.TrimSpace(string(content))
}

// globbed quotes what filepath.Glob takes for a pattern. On Windows, names cannot have such characters, but "[".
func globbed(name string) string {
	if filepath.Separator == '\\' {
		return strings.ReplaceAll(name, "[", "[[]")
	}
	return strings.NewReplacer(`\`, `\\`, "[", `\[`, "*", `\*`, "?", `\?`).Replace(name)
}
