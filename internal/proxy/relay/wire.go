package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
)

// wire is a connection below TLS that can be looked at without waiting.
type wire struct {
	net.Conn
	socket  syscall.RawConn // nil: it cannot be looked at
	looking bool
	sent    atomic.Bool // something of the request was, perhaps
	broken  atomic.Bool // writing has failed
}

func newWire(under net.Conn) *wire {
	w := &wire{Conn: under}
	if has, ok := under.(syscall.Conn); ok {
		w.socket, _ = has.SyscallConn()
	}
	return w
}

// errNothingYet says that a connection is open and silent. It is an error that passes: TLS can go on after it.
var errNothingYet = net.Error(silence{os.ErrDeadlineExceeded})

type silence struct{ error }

func (silence) Timeout() bool   { return true }
func (silence) Temporary() bool { return true }

var errCannotLook = errors.New("the connection cannot be looked at")

// Read implements net.Conn.
func (w *wire) Read(p []byte) (int, error) {
	if !w.looking {
		return w.Conn.Read(p)
	}
	if w.socket == nil {
		return 0, errCannotLook
	}
	var n int
	var err error
	if outer := w.socket.Read(func(fd uintptr) bool {
		n, err = readNow(fd, p)
		return true
	}); outer != nil {
		return 0, outer
	}
	if n <= 0 && err == nil {
		return 0, io.EOF
	}
	return max(n, 0), err
}

// Write implements net.Conn.
func (w *wire) Write(p []byte) (int, error) {
	before := w.sent.Swap(true)
	n, err := w.Conn.Write(p)
	if err != nil {
		w.broken.Store(true)
		if n == 0 {
			w.sent.Store(before)
		}
	}
	return n, err
}
