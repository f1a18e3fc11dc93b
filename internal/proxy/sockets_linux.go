package proxy

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// boundSendQueue bounds what waits in the kernel for a client. Where it cannot be set, the kernel's own bound holds, some
// megabytes. Connections do not inherit it here: Go's listeners are of Multipath TCP.
func boundSendQueue(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if socket, err := tcp.SyscallConn(); err == nil {
		_ = socket.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, sendQueue)
		})
	}
}

// boundUpstream is for sockets of connections to the API server. It bounds what waits in the kernel for a client that
// does not read: the kernel's own bound is some megabytes, and they count as memory of the pod. And a connection that is
// dead is noticed, also when the API server does not confirm what was sent, as HTTP/2 notices it by its pings.
func boundUpstream(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(fd uintptr) {
		// Where one cannot be set, the kernel's own holds.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, upstreamWindow)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int((pingAfter + pingWait).Milliseconds()))
	})
}
