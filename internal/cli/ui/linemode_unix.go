//go:build unix

package ui

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// LineMode says whether r is a terminal that gives whole lines and shows what is typed. It does, unless a program has
// the whole screen, such as k9s: text that another program prints would then spoil it.
func LineMode(r io.Reader) bool {
	file, ok := r.(*os.File)
	if !ok {
		return false
	}
	mode, err := unix.IoctlGetTermios(int(file.Fd()), getMode)
	return err == nil && mode.Lflag&unix.ICANON != 0 && mode.Lflag&unix.ECHO != 0
}
