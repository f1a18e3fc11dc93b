package impersonator

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// lingerAfterEnd is how long the client of an upgraded connection may take to close it when the API server has. It is
// not closed at once: what the client sent last would then destroy what it has not read yet, such as an exit code.
const lingerAfterEnd = 5 * time.Second

var errUpstreamEnded = errors.New("the API server ended the stream")

// upgradable lets go of the client's connection after a switch of protocols when ctx ends. ReverseProxy closes only the
// connection to the API server then, and waits for the client.
type upgradable struct {
	http.ResponseWriter
	ctx context.Context //nolint:containedctx // it lives as long as this one request
}

// Unwrap lets http.ResponseController find what the wrapped writer can do.
func (w *upgradable) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker.
func (w *upgradable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		// The context ends at the latest when the handler returns, and then the connection is done with.
		context.AfterFunc(w.ctx, func() { _ = conn.Close() })
	}
	return conn, buffered, err
}

// upgradedBody is the API server's side of an upgraded connection. When it ends, so does the stream, after a while. An API
// server that takes nothing more has ended it, too, but what it said before may still be on its way: ReverseProxy would
// drop that at the first error in the other direction, so that one is kept from it.
type upgradedBody struct {
	io.ReadWriteCloser
	end  func(error)
	deaf bool // only Write and CloseWrite use it, which are called one after the other
}

func (b *upgradedBody) endSoon() {
	time.AfterFunc(lingerAfterEnd, func() { b.end(errUpstreamEnded) })
}

// Read implements io.Reader. Any end is io.EOF: ReverseProxy would close the client's connection at once after another error.
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

// CloseWrite passes on that the client has nothing more to say. It fails only where halves cannot be closed.
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
