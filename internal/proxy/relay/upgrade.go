package relay

import (
	"errors"
	"io"
	"time"
)

// lingerAfterEnd is how long the client may take to close an upgraded connection after the API server has closed its
// side. If the proxy closed it at once while the client still sends, the client could miss unread data, such as an exit
// code.
const lingerAfterEnd = 5 * time.Second

var errUpstreamEnded = errors.New("the API server ended the stream")

// upgradedBody is the API server's side of an upgraded connection. The stream ends lingerAfterEnd after it. A failed
// write means that the API server has stopped reading, but data from it may still arrive. ReverseProxy would drop that
// data on a failed write, so Write hides the failure.
type upgradedBody struct {
	io.ReadWriteCloser
	end  func(error)
	deaf bool // only for Write and CloseWrite, which are never concurrent
}

func (b *upgradedBody) endSoon() {
	time.AfterFunc(lingerAfterEnd, func() { b.end(errUpstreamEnded) })
}

// Read implements io.Reader. Every error becomes io.EOF: on others, ReverseProxy would close the client's connection at
// once.
func (b *upgradedBody) Read(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Read(p)
	if err != nil {
		b.endSoon()
		err = io.EOF
	}
	return n, err
}

// Write implements io.Writer. It never fails; data that can no longer be sent is dropped.
func (b *upgradedBody) Write(p []byte) (int, error) {
	if !b.deaf {
		if _, err := b.ReadWriteCloser.Write(p); err != nil {
			b.deaf = true
			b.endSoon()
		}
	}
	return len(p), nil
}

// CloseWrite forwards the end of the client's data. It only fails if the connection cannot be half-closed.
func (b *upgradedBody) CloseWrite() error {
	half, ok := b.ReadWriteCloser.(interface{ CloseWrite() error })
	switch {
	case !ok:
		return b.Close()
	case b.deaf:
		return nil
	}
	if err := half.CloseWrite(); err != nil {
		b.endSoon()
	}
	return nil
}
