package relay

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// readSize is the buffer size for responses: one TLS record.
	readSize  = 16 << 10
	writeSize = 4 << 10
	// maxHead limits the header of a response, and of informational responses before it that are not forwarded.
	maxHead = 1 << 20
	// responseAfterBreak is how long to wait for a response after the server stopped reading the request.
	responseAfterBreak = time.Second
)

// conn is a connection with one request at a time. Only the goroutine of that request uses it; another one may only
// close it.
type conn struct {
	wire   *wire
	limit  *io.LimitedReader // of read: the bytes that may come before the end of the header
	read   *bufio.Reader
	write  *bufio.Writer
	keep   func(*conn) // called when another request may use it
	made   time.Time
	expiry *time.Timer // closes it after idleFor
}

// newConn returns a connection that sends and receives through secured, which is TLS over line.
func newConn(secured net.Conn, line *wire, keep func(*conn)) *conn {
	limit := &io.LimitedReader{R: secured}
	return &conn{
		wire: line, limit: limit, keep: keep, made: time.Now(),
		read: bufio.NewReaderSize(limit, readSize), write: bufio.NewWriterSize(secured, writeSize),
	}
}

// close closes the connection at once, without a TLS close_notify, which the server does not need.
func (c *conn) close() { _ = c.wire.Close() }

// quiet is true when the connection is open and has received nothing.
func (c *conn) quiet() bool {
	c.wire.peeking = true
	_, err := c.read.Peek(1)
	c.wire.peeking = false
	return errors.Is(err, errNothingYet)
}

// exchange sends the request, whose body is in memory, and reads the header of its response.
func (c *conn) exchange(req *http.Request) (*http.Response, error) {
	c.limit.N, c.wire.sent = maxHead, false
	a := &responseBody{conn: c, ctx: req.Context(), stop: context.AfterFunc(req.Context(), c.close)}
	unsent := req.Write(c.write)
	if unsent == nil {
		unsent = c.write.Flush()
	}
	if unsent != nil { // the server stopped reading, but may have sent its response
		_ = c.wire.SetReadDeadline(time.Now().Add(responseAfterBreak))
	}
	res, err := c.head(req)
	if err != nil {
		a.end(false)
		return nil, cmp.Or(unsent, err)
	}
	a.mayStay = unsent == nil && !res.Close && !req.Close && res.StatusCode != http.StatusSwitchingProtocols
	if res.Body == http.NoBody {
		a.end(true)
		return res, nil
	}
	a.body, res.Body = res.Body, a
	return res, nil
}

// head reads the header of the response. It passes informational responses to ReverseProxy, as net/http does.
func (c *conn) head(req *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(req.Context())
	for {
		res, err := http.ReadResponse(c.read, req)
		if err != nil {
			return nil, err
		}
		if res.StatusCode >= http.StatusOK || res.StatusCode == http.StatusSwitchingProtocols {
			c.limit.N = math.MaxInt64
			return res, nil
		}
		if trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(res.StatusCode, textproto.MIMEHeader(res.Header)); err != nil {
				return nil, err
			}
			c.limit.N = maxHead
		}
	}
}

// mayRepeat is true when a request without a response can be sent again and is not carried out twice.
func (c *conn) mayRepeat(req *http.Request) bool {
	if c.limit.N < maxHead || req.Context().Err() != nil || hasBody(req) && req.GetBody == nil {
		return false
	}
	return !c.wire.sent || !hasBody(req) && onlyReads(req)
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// responseBody is the body of a response. Its end keeps or closes the connection.
type responseBody struct {
	*conn
	ctx     context.Context //nolint:containedctx // it lives as long as this one request
	body    io.ReadCloser
	stop    func() bool
	mayStay bool
	over    sync.Once
}

// Read implements io.Reader.
func (a *responseBody) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	if err != nil {
		regular := err == io.EOF //nolint:errorlint // only the very value is the regular end
		a.end(regular)
		if cause := context.Cause(a.ctx); cause != nil && !regular {
			err = cause
		}
	}
	return n, err
}

// Close implements io.Closer. The unread rest of the response is discarded with the connection.
func (a *responseBody) Close() error {
	a.end(false)
	return nil
}

// end keeps the connection if the whole response was read and it can be reused, or else closes it.
func (a *responseBody) end(whole bool) {
	a.over.Do(func() {
		if a.stop() && whole && a.mayStay && a.read.Buffered() == 0 {
			a.keep(a.conn)
		} else {
			a.close()
		}
	})
}

// wire is a connection below TLS. While peeking, reads do not block.
type wire struct {
	net.Conn
	peeking bool
	sent    bool // a part of the request may have been sent
}

// errNothingYet is the error for an open connection without input. It is temporary: TLS continues after it.
var errNothingYet = os.ErrDeadlineExceeded

// Read implements net.Conn.
func (w *wire) Read(p []byte) (n int, err error) {
	if !w.peeking {
		return w.Conn.Read(p)
	}
	under, ok := w.Conn.(syscall.Conn)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	socket, err := under.SyscallConn()
	if err != nil {
		return 0, err
	}
	outer := socket.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), p)
		return true // never wait
	})
	switch {
	case outer != nil:
		return 0, outer
	case err == unix.EAGAIN: //nolint:errorlint // the kernel's own
		return 0, errNothingYet
	case n <= 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (w *wire) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	w.sent = w.sent || n > 0 || err == nil
	return n, err
}
