package listener

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// boundSendQueue bounds what waits in the kernel for a client. Where it cannot be set, the kernel's own bound holds,
// some megabytes. Connections do not inherit it here: Go's listeners are of Multipath TCP.
func boundSendQueue(conn net.Conn) {
	onSocket(conn, func(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, sendQueue) })
}

// hasLeft is true when the client has closed its side, also while there is something to read that it sent before.
func hasLeft(conn net.Conn) (left bool) {
	onSocket(conn, func(fd int) {
		sockets := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}} //nolint:gosec // the kernel's are of 31 bits
		n, err := unix.Poll(sockets, 0)
		left = err == nil && n == 1
	})
	return left
}

// onSocket does nothing for a connection that is not of TCP.
func onSocket(conn net.Conn, do func(fd int)) {
	if tcp, ok := conn.(syscall.Conn); ok {
		if socket, err := tcp.SyscallConn(); err == nil {
			_ = socket.Control(func(fd uintptr) { do(int(fd)) })
		}
	}
}
