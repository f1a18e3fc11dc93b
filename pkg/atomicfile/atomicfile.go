// Package atomicfile replaces files as a whole: a program that reads the file sees the old content or the new
// content, never a part of either.
//
// The library google/renameio does not work on Windows, and keeps the permissions of the old file. A file with
// credentials must not be readable for others only because the file before it was.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Write replaces the file at path with data. The new file has mode 0600, whatever the old one had, and is on the disk
// before it gets its name. A symbolic link stays, and its target is replaced; a device or pipe, such as /dev/stdout, is
// written to as it is. After an error the old file is as it was.
func Write(path string, data []byte) error {
	target, err := resolve(path)
	if err != nil {
		return err
	}
	if info, err := os.Stat(target); err == nil && !info.Mode().IsRegular() {
		if info.IsDir() {
			return &fs.PathError{Op: "write", Path: path, Err: errors.New("is a directory")}
		}
		return writeThrough(target, data)
	}
	return replace(target, data, func(*os.File) error { return nil })
}

// Update replaces the content of a file that another program has made, such as a user's kubeconfig. It works as Write
// does, with two differences: the file must exist and be a regular file, or a link to one; and the file keeps its
// permissions and, on Unix, its owner.
func Update(path string, data []byte) error {
	target, err := resolve(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(target)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &fs.PathError{Op: "write", Path: path, Err: errors.New("is not a regular file")}
	}
	return replace(target, data, func(file *os.File) error {
		if err := keepOwner(file, info); err != nil {
			return err
		}
		return file.Chmod(info.Mode().Perm())
	})
}

// replace writes a new file beside target and then renames it to target. It calls prepare with the new file while
// that is empty.
func replace(target string, data []byte, prepare func(*os.File) error) error {
	temp, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // gone already when all went well
	if err := prepare(temp); err != nil {
		return errors.Join(err, temp.Close())
	}
	if _, err := temp.Write(data); err != nil {
		return errors.Join(err, temp.Close())
	}
	if err := temp.Sync(); err != nil {
		return errors.Join(err, temp.Close())
	}
	if err := temp.Close(); err != nil {
		return err
	}
	return retry(func() error { return os.Rename(temp.Name(), target) }, inUse, time.Sleep)
}

// retry calls do again, for a second, as long as its error may pass.
func retry(do func() error, passes func(error) bool, sleep func(time.Duration)) error {
	for wait := time.Millisecond; ; wait *= 2 {
		err := do()
		if err == nil || !passes(err) || wait >= time.Second {
			return err
		}
		sleep(wait)
	}
}

// inUse reports whether Windows does not replace a file because another program has it open.
func inUse(err error) bool {
	const accessDenied, sharingViolation = syscall.Errno(5), syscall.Errno(32)
	return runtime.GOOS == "windows" && (errors.Is(err, accessDenied) || errors.Is(err, sharingViolation))
}

// resolve follows symbolic links, also one whose target does not exist yet.
func resolve(path string) (string, error) {
	for range 40 {
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode()&fs.ModeSymlink == 0 {
			return path, nil
		}
		if err != nil {
			return "", err
		}
		// A link in /proc or /dev/fd may lead to something that has no path. Only the kernel can follow such a link.
		if target, err := os.Stat(path); err == nil && !target.Mode().IsRegular() {
			return path, nil
		}
		link, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(filepath.Dir(path), link)
		}
		path = link
	}
	return "", fmt.Errorf("following symbolic links of %q: too many", path)
}

func writeThrough(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := file.Write(data); err != nil {
		return errors.Join(err, file.Close())
	}
	return file.Close()
}
