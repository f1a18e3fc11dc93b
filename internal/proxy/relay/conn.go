package relay

import (
	"bufio"
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
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// readSize is the buffer of answers: the contents of one TLS record.
	readSize  = 16 << 10
	writeSize = 4 << 10
	// maxHead bounds the head of an answer, together with those of informational ones that nobody is told of.
	maxHead = 1 << 20
	// writtenBy is how long a request may still be written after all of its answer was read, as in net/http.
	writtenBy = 50 * time.Millisecond
)

var errLongHead = errors.New("the head of the answer is too long")

// conn is a connection that carries one request at a time. The goroutine of that request uses it; another one may only
// close it.
type conn struct {
	under net.Conn // TLS, where there is any
	wire  *wire
	home  *pool
	read  *bufio.Reader
	write *bufio.Writer
	made  time.Time
	since time.Time // when it became idle

	got  int64 // bytes of the answer
	left int64 // of what may come before the head is over
}

func newConn(under net.Conn, line *wire, home *pool) *conn {
	c := &conn{under: under, wire: line, home: home, made: time.Now()}
	c.read = bufio.NewReaderSize(reader{c}, readSize)
	c.write = bufio.NewWriterSize(under, writeSize)
	return c
}

// reader counts what is read, and ends an endless head.
type reader struct{ c *conn }

// Read implements io.Reader.
func (r reader) Read(p []byte) (int, error) {
	if r.c.left <= 0 {
		return 0, errLongHead
	}
	if int64(len(p)) > r.c.left {
		p = p[:r.c.left]
	}
	n, err := r.c.under.Read(p)
	r.c.got += int64(n)
	r.c.left -= int64(n)
	return n, err
}

// close ends the connection at once. TLS does not say goodbye: the server need not be told more than that.
func (c *conn) close() { _ = c.wire.Close() }

// quiet is true when the connection is open and nothing has come on it.
func (c *conn) quiet() bool {
	c.wire.looking = true
	_, err := c.read.Peek(1)
	c.wire.looking = false
	return errors.Is(err, errNothingYet)
}

// exchange sends the request and reads the head of its answer.
func (c *conn) exchange(req *http.Request) (*http.Response, error) {
	c.got, c.left = 0, maxHead
	c.wire.sent.Store(false)
	c.wire.broken.Store(false)
	a := &answer{conn: c, ctx: req.Context(), written: make(chan error, 1)}
	a.stop = context.AfterFunc(a.ctx, c.close)
	if !hasBody(req) || req.ContentLength > 0 && req.ContentLength <= writtenFirst {
		a.send(req)
	} else {
		go a.send(req)
	}
	res, err := c.head(req)
	if err != nil {
		if unsent := a.end(false); unsent != nil {
			err = unsent
		}
		return nil, err
	}
	a.mayStay = !res.Close && !req.Close && res.StatusCode != http.StatusSwitchingProtocols
	if res.Body == http.NoBody {
		_ = a.end(true)
		return res, nil
	}
	a.body, res.Body = res.Body, a
	return res, nil
}

// send writes the request. When the server reads no more of it, its answer may be there all the same, and gets a moment.
// When the body cannot be read, nothing is waited for: the server must not take what it has for the whole.
func (a *answer) send(req *http.Request) {
	a.write.Reset(a.under)
	err := req.Write(a.write)
	if err == nil {
		err = a.write.Flush()
	}
	a.written <- err
	switch {
	case err == nil:
	case a.wire.broken.Load():
		_ = a.wire.SetReadDeadline(time.Now().Add(answerAfterBreak))
	default:
		a.close()
	}
}

// head reads the head of the answer. It tells ReverseProxy of informational answers, as net/http does.
func (c *conn) head(req *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(req.Context())
	for {
		res, err := http.ReadResponse(c.read, req)
		if err != nil {
			return nil, err
		}
		if res.StatusCode >= http.StatusOK || res.StatusCode == http.StatusSwitchingProtocols {
			c.left = math.MaxInt64
			return res, nil
		}
		if trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(res.StatusCode, textproto.MIMEHeader(res.Header)); err != nil {
				return nil, err
			}
			c.left = maxHead
		}
	}
}

// mayRepeat is true when the request, which got no answer here, can be sent again without being carried out twice.
func (c *conn) mayRepeat(req *http.Request) bool {
	if c.got > 0 || req.Context().Err() != nil || hasBody(req) && req.GetBody == nil {
		return false
	}
	return !c.wire.sent.Load() || !hasBody(req) && (req.Method == http.MethodGet || req.Method == http.MethodHead)
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// answer is the body of an answer. At its end the connection is kept or closed.
type answer struct {
	*conn
	ctx     context.Context //nolint:containedctx // it lives as long as this one request
	body    io.ReadCloser
	stop    func() bool
	written chan error // what came of writing the request, as soon as that is over
	mayStay bool
	over    sync.Once
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	if err != nil {
		regular := err == io.EOF //nolint:errorlint // only the very value is the regular end
		_ = a.end(regular)
		if cause := context.Cause(a.ctx); cause != nil && !regular {
			err = cause
		}
	}
	return n, err
}

// Close implements io.Closer. What was not read of the answer is not read any more: the connection ends.
func (a *answer) Close() error {
	_ = a.end(false)
	return nil
}

// end keeps the connection, if it can be used again after the whole of the answer was read, or closes it. It returns
// why the request could not be written, if it is known.
func (a *answer) end(whole bool) (unsent error) {
	a.over.Do(func() {
		stay := a.stop() && whole && a.mayStay && a.read.Buffered() == 0
		written := len(a.written) > 0
		if stay && !written {
			select {
			case unsent = <-a.written:
				written = true
			case <-time.After(writtenBy): // the server did not want the rest
			}
		} else if written {
			unsent = <-a.written
		}
		if stay && written && unsent == nil {
			a.home.put(a.conn)
		} else {
			a.close()
		}
	})
	return unsent
}

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

var (
	// errNothingYet says that a connection is open and silent. It is an error that passes: TLS can go on after it.
	errNothingYet = os.ErrDeadlineExceeded
	errCannotLook = errors.New("the connection cannot be looked at")
)

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
		return 0, errCannotLook
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
