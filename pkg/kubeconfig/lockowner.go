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

// ClearLeftovers removes what processes that were killed while they changed the kubeconfig at path have left behind:
// a lock whose owner dead knows, and temporary files, which have parts of the kubeconfig in them. A lock of another
// program stays. If there are temporary files, it is waited for until ctx ends, as they may be in use. Meanwhile the
// kubeconfig is locked by owner, as this process may be killed, too.
func ClearLeftovers(ctx context.Context, path, owner string, dead func(owner string) bool) error {
	name := path + ".lock"
	if before := lockOwner(name); before != "" && dead(before) {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	left, err := temporaryFiles(path)
	if err != nil || len(left) == 0 {
		return err
	}
	unlock, err := lockAs(ctx, path, owner)
	if err != nil {
		return err
	}
	defer unlock()
	if left, err = temporaryFiles(path); err != nil {
		return err
	}
	for _, file := range left {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// temporaryFiles returns the files that a change of the kubeconfig at path makes and renames, and those of its lock.
func temporaryFiles(path string) ([]string, error) {
	actual := path // they are beside the file itself, and not beside a link to it
	if target, err := filepath.EvalSymlinks(path); err == nil {
		actual = target
	}
	var all []string
	for _, base := range []string{actual, path + ".lock"} {
		found, err := filepath.Glob(filepath.Join(globbed(filepath.Dir(base)), "."+globbed(filepath.Base(base))+".*.tmp"))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// lockOwner returns what is in a lock. It is empty for locks of kubectl, which have no permissions, and without a lock.
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
