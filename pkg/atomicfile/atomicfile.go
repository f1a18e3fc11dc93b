// Package atomicfile reads and atomically replaces files that others may replace at any moment.
//
// A reader sees either the old content or the new content. Symbolic links are followed once; then the directory is held
// open and only that entry of it is replaced, so a link that is planted later has no effect.
//
// The library google/renameio does not support Windows, and keeps the permissions of the old file. A file with
// credentials must not become readable for others only because the old one was.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// ErrNotRegular means that a file is a directory, a device or a pipe.
var ErrNotRegular = errors.New("it is not a regular file")

// ErrTooLarge means that a file exceeds the limit.
var ErrTooLarge = errors.New("the file is too large")

// ErrReplaced means that the file was replaced by another one since it was read.
var ErrReplaced = errors.New("it was replaced since it was read; nothing was written")

// InPlaceError means that a file could be neither replaced nor overwritten.
type InPlaceError struct {
	Folder string // the directory that would have to be writable
	Copy   string // a backup of the old content; empty if the file is unchanged
	Err    error
}

func (e *InPlaceError) Error() string {
	if e.Copy != "" {
		return fmt.Sprintf("overwriting it: %v; the old content is in %q", e.Err, e.Copy)
	}
	return fmt.Sprintf("the folder %q must be writable: %v", e.Folder, e.Err)
}

func (e *InPlaceError) Unwrap() error { return e.Err }

// ReadFile reads a regular file of at most limit bytes. It follows symbolic links. For other files it returns
// ErrNotRegular without blocking.
func ReadFile(path string, limit int64) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	content, _, err := readAll(file, limit)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return content, nil
}

func readAll(file *os.File, limit int64) ([]byte, fs.FileInfo, error) {
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular():
		return nil, nil, ErrNotRegular
	case info.Size() > limit:
		return nil, nil, fmt.Errorf("%w: it has %d bytes", ErrTooLarge, info.Size())
	}
	content, err := ReadStream(file, limit)
	return content, info, err
}

// File is a file that was read in order to be replaced.
type File struct {
	Content []byte
	Exists  bool // if false, Replace creates it
	Linked  bool // it was reached through a symbolic link

	path string // as given by the caller
	at   entry
	file *os.File // open, so that its inode is not reused
	info fs.FileInfo
}

// entry is a name in an open directory.
type entry struct {
	root *os.Root
	name string
}

// Open reads the regular file at path, of at most limit bytes. If there is none, Exists is false. The caller must close
// it.
func Open(path string, limit int64) (*File, error) {
	at, info, err := find(path)
	if err != nil {
		return nil, err
	}
	linked := filepath.Join(at.root.Name(), at.name) != filepath.Clean(path)
	file := &File{Linked: linked, path: path, at: at}
	if info != nil {
		err = file.read(info, limit)
	}
	if err != nil {
		file.Close()
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return file, nil
}

func (f *File) read(found fs.FileInfo, limit int64) error {
	if !found.Mode().IsRegular() {
		return ErrNotRegular
	}
	file, err := f.at.root.OpenFile(f.at.name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return rootCause(err)
	}
	f.file = file
	f.Content, f.info, err = readAll(file, limit)
	if err == nil && !os.SameFile(found, f.info) {
		err = ErrReplaced
	}
	f.Exists = err == nil
	return err
}

// Close closes the file and its directory.
func (f *File) Close() {
	if f.file != nil {
		_ = f.file.Close()
	}
	_ = f.at.root.Close()
}

// same returns ErrReplaced if the entry is not the file that was read any more.
func (f *File) same() error {
	if now, err := f.at.root.Lstat(f.at.name); err != nil || !os.SameFile(f.info, now) {
		return ErrReplaced
	}
	if runtime.GOOS == "windows" { // it cannot replace an open file, and does not reuse file IDs soon
		_ = f.file.Close()
	}
	return nil
}

// Replace replaces the file that was read. The new one has the same permissions and, on Unix, the same owner, or mode
// 0600 if there was none. If the file cannot be replaced (it is a mount point, or its directory is not writable),
// Replace backs it up and overwrites it.
func (f *File) Replace(data []byte) error {
	return f.replace(data, func(file *os.File) error {
		if err := keepOwner(file, f.info); err != nil {
			return err
		}
		return file.Chmod(f.info.Mode().Perm())
	}, f.overwrite)
}

// ReplacePrivate is Replace for a file with secrets: the new file has mode 0600 and the owner of this process.
func (f *File) ReplacePrivate(data []byte) error { return f.replace(data, nil, f.overwritePrivate) }

func (f *File) replace(data []byte, prepare func(*os.File) error, inPlace func([]byte, error) error) error {
	if !f.Exists {
		return f.at.replace(data, nil, nil)
	}
	err := f.at.replace(data, prepare, f.same)
	if onlyInPlace(err) {
		return inPlace(data, err)
	}
	return err
}

// overwritePrivate is overwrite after removing the permissions of others.
func (f *File) overwritePrivate(data []byte, cause error) error {
	if err := f.at.root.Chmod(f.at.name, 0o600); err != nil {
		return err
	}
	return f.overwrite(data, cause)
}

// Write replaces the file at path with data. The new file has mode 0600 and is on disk before it gets its name. If path
// is a symbolic link, its target is replaced. A device or pipe, such as /dev/stdout, is written to. If the file cannot
// be replaced, it is overwritten as in Replace.
func Write(path string, data []byte) error {
	// A link in /proc or /dev/fd may lead to something without a path, which only the kernel can follow.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		if info.IsDir() {
			return &fs.PathError{Op: "write", Path: path, Err: errors.New("is a directory")}
		}
		return writeThrough(path, data)
	}
	at, info, err := find(path)
	if err != nil {
		return err
	}
	defer func() { _ = at.root.Close() }()
	if info != nil && !info.Mode().IsRegular() {
		return &fs.PathError{Op: "write", Path: path, Err: ErrNotRegular}
	}
	err = at.replace(data, nil, nil)
	if info == nil || !onlyInPlace(err) {
		return err
	}
	file := &File{path: path, at: at}
	reading := file.read(info, math.MaxInt64-1)
	if file.file != nil {
		defer func() { _ = file.file.Close() }()
	}
	if reading != nil {
		return &fs.PathError{Op: "read", Path: path, Err: reading}
	}
	return file.overwritePrivate(data, err)
}

// find follows symbolic links and returns the entry that path leads to. The info is nil if there is no such file.
func find(path string) (entry, fs.FileInfo, error) {
	original := path
	for range 40 {
		path = filepath.Clean(path)
		folder, name := filepath.Dir(path), filepath.Base(path)
		root, err := os.OpenRoot(folder)
		if err != nil {
			return entry{}, nil, err
		}
		info, err := root.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return entry{root, name}, nil, nil
		case err == nil && info.Mode()&fs.ModeSymlink == 0:
			return entry{root, name}, info, nil
		case err == nil:
			path, err = root.Readlink(name)
		}
		_ = root.Close()
		if err != nil {
			return entry{}, nil, &fs.PathError{Op: "read", Path: original, Err: rootCause(err)}
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(folder, path)
		}
	}
	return entry{}, nil, fmt.Errorf("following symbolic links of %q: too many", original)
}

// replace writes a new file next to the entry and renames it. It calls prepare with the new, empty file, and check just
// before the entry is replaced. Both may be nil.
func (e entry) replace(data []byte, prepare func(*os.File) error, check func() error) error {
	temp, name, err := e.temporary("tmp")
	if err != nil {
		return err
	}
	defer func() { _ = e.root.Remove(name) }() // it has been renamed if all went well
	if prepare != nil {
		if err := prepare(temp); err != nil {
			return errors.Join(err, temp.Close())
		}
	}
	if err := fill(temp, data); err != nil {
		return err
	}
	if check != nil {
		if err := check(); err != nil {
			return err
		}
	}
	return retry(func() error { return e.root.Rename(name, e.name) }, inUse, time.Sleep)
}

// temporary creates a file next to the entry that only its owner can read.
func (e entry) temporary(kind string) (*os.File, string, error) {
	for {
		number := strconv.FormatUint(rand.Uint64(), 10) //nolint:gosec // O_EXCL rejects an existing name
		name := "." + e.name + "." + number + "." + kind
		file, err := e.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		return file, name, err
	}
}

// fill writes and syncs data, and closes the file.
func fill(file *os.File, data []byte) error {
	_, err := file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// onlyInPlace reports whether an error means that the file may be writable, but cannot be replaced.
func onlyInPlace(err error) bool {
	if inUse(err) {
		return false
	}
	return errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EXDEV) ||
		errors.Is(err, fs.ErrPermission)
}

// overwrite writes data into the file that was read, after a backup next to it or next to the link to it.
func (f *File) overwrite(data []byte, cause error) error {
	impossible := &InPlaceError{Folder: f.at.root.Name(), Err: rootCause(cause)}
	file, err := f.at.root.OpenFile(f.at.name, os.O_RDWR|nonblock, 0)
	if err != nil {
		return impossible
	}
	defer func() { _ = file.Close() }()
	if now, err := file.Stat(); err != nil || !os.SameFile(f.info, now) {
		return ErrReplaced
	}
	beside := f.at
	saved, name, err := beside.temporary("backup")
	if err != nil {
		root, opening := os.OpenRoot(filepath.Dir(f.path))
		if opening != nil {
			return impossible
		}
		defer func() { _ = root.Close() }()
		beside = entry{root, filepath.Base(f.path)}
		if saved, name, err = beside.temporary("backup"); err != nil {
			return impossible
		}
	}
	if err := fill(saved, f.Content); err != nil {
		_ = beside.root.Remove(name)
		return fmt.Errorf("copying it: %w", err)
	}
	if err := rewrite(file, data); err != nil {
		if rewrite(file, f.Content) != nil {
			return &InPlaceError{Folder: f.at.root.Name(), Copy: filepath.Join(beside.root.Name(), name), Err: rootCause(err)}
		}
		_ = beside.root.Remove(name)
		return fmt.Errorf("overwriting it: %w", err)
	}
	return beside.root.Remove(name)
}

// rewrite replaces the content of an open file. It truncates last, so that concurrent readers never see an empty file.
func rewrite(file *os.File, data []byte) error {
	if _, err := file.WriteAt(data, 0); err != nil {
		return err
	}
	if err := file.Truncate(int64(len(data))); err != nil {
		return err
	}
	return file.Sync()
}

// retry calls do again for about a second, as long as passes reports that its error is temporary.
func retry(do func() error, passes func(error) bool, sleep func(time.Duration)) error {
	for wait := time.Millisecond; ; wait *= 2 {
		err := do()
		if err == nil || !passes(err) || wait >= time.Second {
			return err
		}
		sleep(wait)
	}
}

// inUse reports whether Windows cannot replace a file because another program has it open.
func inUse(err error) bool {
	const accessDenied, sharingViolation = syscall.Errno(5), syscall.Errno(32)
	return runtime.GOOS == "windows" && (errors.Is(err, accessDenied) || errors.Is(err, sharingViolation))
}

func writeThrough(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}

// rootCause removes the operation and path from an error, which are reported elsewhere.
func rootCause(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	if linkError, ok := errors.AsType[*os.LinkError](err); ok {
		return linkError.Err
	}
	return err
}
