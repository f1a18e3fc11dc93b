package relay

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestDeadUpstreamConnectionsAreNoticed reads back the socket options of a connection to the API server.
func TestDeadUpstreamConnectionsAreNoticed(t *testing.T) {
	t.Parallel()
	socket := must.Get(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))(t)
	file := os.NewFile(uintptr(socket), "socket")
	defer file.Close() //nolint:errcheck // the test is over
	raw := must.Get(file.SyscallConn())(t)
	must.Do(t, boundUpstream("", "", raw))
	after, err := unix.GetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	if err != nil || after != int((pingAfter+pingWait).Milliseconds()) {
		t.Errorf("want a dead connection noticed after %s, got %d ms, %v", pingAfter+pingWait, after, err)
	}
	queue, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil || queue > 2*upstreamWindow { // the kernel doubles it, for its own overhead
		t.Errorf("want at most %d bytes received ahead, got %d, %v", upstreamWindow, queue, err)
	}
}
