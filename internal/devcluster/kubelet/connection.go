package kubelet

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// lingerAfterClose limits how long the API server may take to close a connection that the node has closed.
const lingerAfterClose = 5 * time.Second

// listenerWithContexts gives each connection a context that ends when the client disconnects. After an upgrade, the
// request's own context does not.
type listenerWithContexts struct {
	net.Listener
	parent context.Context //nolint:containedctx // the parent of all connections' contexts

	mu   sync.Mutex
	open map[*connection]struct{}
}

func (l *listenerWithContexts) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn}
	c.ctx, c.cancel = context.WithCancel(l.parent)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = struct{}{}
	context.AfterFunc(c.ctx, func() {
		_ = conn.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, c)
	})
	return c, nil
}

// drop resets all open connections.
func (l *listenerWithContexts) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if tcp, ok := c.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		c.cancel()
	}
}

func (l *listenerWithContexts) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

type connection struct {
	net.Conn
	ctx    context.Context //nolint:containedctx // it is the connection's
	cancel context.CancelFunc
}

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.cancel()
	}
	return n, err
}

// Close closes the connection in two steps: its own half at once, and the whole when the API server has closed its
// half, or after lingerAfterClose. An API server that cannot write to it any more would drop data that it has not
// passed on to the client yet, such as an exit code.
func (c *connection) Close() error {
	tcp, ok := c.Conn.(*net.TCPConn)
	if !ok || tcp.CloseWrite() != nil {
		c.cancel()
		return c.Conn.Close()
	}
	_ = tcp.SetReadDeadline(time.Now().Add(lingerAfterClose))
	go func() {
		_, _ = io.Copy(io.Discard, tcp)
		c.cancel()
	}()
	return nil
}

// contextOf is for http.Server.ConnContext.
func contextOf(ctx context.Context, conn net.Conn) context.Context {
	if over, ok := conn.(*tls.Conn); ok {
		if c, ok := over.NetConn().(*connection); ok {
			merged, cancel := context.WithCancel(ctx)
			context.AfterFunc(c.ctx, cancel)
			return merged
		}
	}
	return ctx
}
