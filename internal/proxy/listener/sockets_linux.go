package listener

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// boundSendQueue limits the unsent bytes in the kernel for a client. If that fails, the kernel's own limit of some
// megabytes applies. Connections do not inherit the option from the listener, because Go's listeners use Multipath TCP.
func boundSendQueue(conn net.Conn) {
	onSocket(conn, func(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, sendQueue) })
}

// hasLeft is true when the client has closed its side, even if data that it sent before is unread.
func hasLeft(conn net.Conn) (left bool) {
	onSocket(conn, func(fd int) {
		sockets := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}} //nolint:gosec // the kernel's are of 31 bits
		n, err := unix.Poll(sockets, 0)
		left = err == nil && n == 1
	})
	return left
}

// onSocket calls do with the file descriptor of a TCP connection. It does nothing for other connections.
func onSocket(conn net.Conn, do func(fd int)) {
	if tcp, ok := conn.(syscall.Conn); ok {
		if socket, err := tcp.SyscallConn(); err == nil {
			_ = socket.Control(func(fd uintptr) { do(int(fd)) })
		}
	}
}
