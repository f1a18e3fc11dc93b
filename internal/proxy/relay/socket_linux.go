package relay

import (
	"syscall"

	"golang.org/x/sys/unix"
)

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
