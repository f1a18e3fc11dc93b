//go:build !unix

package atomicfile

import (
	"io/fs"
	"os"
)

const nonblock = 0 // no file system has pipes

// NoFollow is a flag for os.OpenFile that changes nothing: only administrators make symbolic links on Windows.
const NoFollow = 0

// keepOwner has nothing to do: on this system a new file gets its owner from its folder.
func keepOwner(*os.File, fs.FileInfo) error { return nil }
