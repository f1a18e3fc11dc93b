package impersonator

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// hasLeft is true when the client has closed the connection, and has sent nothing before that. It waits for nothing, and
// takes nothing of what can be read.
func hasLeft(conn net.Conn) bool {
	some, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	socket, err := some.SyscallConn()
	if err != nil {
		return false
	}
	left := false
	_ = socket.Control(func(fd uintptr) {
		var one [1]byte
		n, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		left = n == 0 && err == nil || errors.Is(err, unix.ECONNRESET)
	})
	return left
}
