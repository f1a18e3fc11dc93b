//go:build !unix

package atomicfile

import (
	"io/fs"
	"os"
)

const nonblock = 0 // file systems have no pipes

// NoFollow is a flag for os.OpenFile without effect: on Windows, only administrators create symbolic links.
const NoFollow = 0

// keepOwner does nothing: on this system, a new file gets its owner from its directory.
func keepOwner(*os.File, fs.FileInfo) error { return nil }
