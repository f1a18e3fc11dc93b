//go:build unix

package atomicfile

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// nonblock opens a pipe without waiting for its other end.
const nonblock = syscall.O_NONBLOCK

// NoFollow is a flag for os.OpenFile: it rejects symbolic links, and opens a pipe without waiting for its other end.
const NoFollow = syscall.O_NOFOLLOW | nonblock

// keepOwner gives file the owner and group of the file that it will replace.
func keepOwner(file *os.File, old fs.FileInfo) error {
	was, ok := old.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	now, err := file.Stat()
	if err != nil {
		return err
	}
	if is, ok := now.Sys().(*syscall.Stat_t); ok && is.Uid == was.Uid && is.Gid == was.Gid {
		return nil
	}
	if err := file.Chown(int(was.Uid), int(was.Gid)); err != nil {
		return fmt.Errorf("keeping the file's owner (user %d, group %d): %w", was.Uid, was.Gid, err)
	}
	return nil
}
