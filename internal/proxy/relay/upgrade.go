package relay

import (
	"errors"
	"io"
	"time"
)

// lingerAfterEnd is how long the client may take to close an upgraded connection after the API server has closed its
// side. If the proxy closed it at once while the client still sends, the client could miss data that it has not read
// yet, such as an exit code.
const lingerAfterEnd = 5 * time.Second

var errUpstreamEnded = errors.New("the API server ended the stream")

// upgradedBody is the API server's side of an upgraded connection. The stream ends a while after it. A write that fails
// means that the API server reads no more, but data from it may still be on its way. ReverseProxy would drop that data
// on a failed write, so Write hides the failure.
type upgradedBody struct {
	io.ReadWriteCloser
	end  func(error)
	deaf bool // only Write and CloseWrite use it, which are called one after the other
}

func (b *upgradedBody) endSoon() {
	time.AfterFunc(lingerAfterEnd, func() { b.end(errUpstreamEnded) })
}

// Read implements io.Reader. Any end is io.EOF: ReverseProxy would close the client's connection at once after
// another error.
func (b *upgradedBody) Read(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Read(p)
	if err != nil {
		b.endSoon()
		err = io.EOF
	}
	return n, err
}

// Write implements io.Writer. It never fails; what can no longer be sent is dropped.
func (b *upgradedBody) Write(p []byte) (int, error) {
	if !b.deaf {
		if _, err := b.ReadWriteCloser.Write(p); err != nil {
			b.deaf = true
			b.endSoon()
		}
	}
	return len(p), nil
}

// CloseWrite forwards the end of the client's data. It fails only where halves cannot be closed.
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
