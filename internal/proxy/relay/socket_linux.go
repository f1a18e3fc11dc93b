package relay

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// boundUpstream sets socket options of connections to the API server. It limits the bytes in the kernel for a client
// that does not read: the kernel's own limit is some megabytes, which count as memory of the pod. It also detects dead
// connections when the API server does not acknowledge data, as HTTP/2 pings do.
func boundUpstream(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(fd uintptr) {
		// If one cannot be set, the kernel's default applies.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, upstreamWindow)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int((pingAfter + pingWait).Milliseconds()))
	})
}
