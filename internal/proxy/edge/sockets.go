package edge

import (
	"net"

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
