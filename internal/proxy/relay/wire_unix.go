//go:build unix

package relay

import "syscall"

// readNow reads what has come, and does not wait.
func readNow(fd uintptr, p []byte) (int, error) {
	for {
		n, err := syscall.Read(int(fd), p)
		switch err {
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, errNothingYet
		default:
			return n, err
		}
	}
}
