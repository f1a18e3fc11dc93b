package ui

import (
	"io"
	"os"

	"golang.org/x/sys/windows"
)

// LineMode reports whether r is a terminal in line mode with echo. It is not while a full-screen program such as k9s
// runs, whose screen other output would garble.
func LineMode(r io.Reader) bool {
	file, ok := r.(*os.File)
	if !ok {
		return false
	}
	var mode uint32
	err := windows.GetConsoleMode(windows.Handle(file.Fd()), &mode)
	return err == nil && mode&windows.ENABLE_LINE_INPUT != 0 && mode&windows.ENABLE_ECHO_INPUT != 0
}
