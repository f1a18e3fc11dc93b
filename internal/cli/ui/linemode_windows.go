package ui

import (
	"io"
	"os"

	"golang.org/x/sys/windows"
)

// LineMode says whether r is a terminal that gives whole lines and shows what is typed. It does, unless a program has
// the whole screen, such as k9s: text that another program prints would then spoil it.
func LineMode(r io.Reader) bool {
	file, ok := r.(*os.File)
	if !ok {
		return false
	}
	var mode uint32
	err := windows.GetConsoleMode(windows.Handle(file.Fd()), &mode)
	return err == nil && mode&windows.ENABLE_LINE_INPUT != 0 && mode&windows.ENABLE_ECHO_INPUT != 0
}
