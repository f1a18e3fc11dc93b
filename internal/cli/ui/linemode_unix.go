//go:build unix

package ui

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// LineMode reports whether r is a terminal in line mode with echo. It is not while a full-screen program such as k9s
// runs, whose screen other output would garble.
func LineMode(r io.Reader) bool {
	file, ok := r.(*os.File)
	if !ok {
		return false
	}
	mode, err := unix.IoctlGetTermios(int(file.Fd()), getMode)
	return err == nil && mode.Lflag&unix.ICANON != 0 && mode.Lflag&unix.ECHO != 0
}
