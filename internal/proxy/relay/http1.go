package relay

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

const (
	// handshakeTimeout is the timeout of the TLS handshake of a new connection.
	handshakeTimeout = 10 * time.Second
	// maxAge is how long a connection is reused. Otherwise a restarted API server would get no requests while the
	// connections to the others last.
	maxAge = 5 * time.Minute
	// maxIdle is the maximum number of idle connections, and idleFor how long they are kept: less than the 90 s after
	// which the API server closes them.
	maxIdle = 32
	idleFor = 30 * time.Second
)

// HTTP1 is an http.RoundTripper that sends each request over an exclusive HTTP/1.1 connection.
type HTTP1 struct {
	address string
	dial    dialFunc
	config  *tls.Config
	idle    chan *conn
}

// NewHTTP1 returns a transport for the server at address (host:port), verified by config. It resumes TLS sessions.
func NewHTTP1(address string, config *tls.Config, dial dialFunc) *HTTP1 {
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	config.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	config.DynamicRecordSizingDisabled = true // one TLS record for each request, not for each packet
	if host, _, err := net.SplitHostPort(address); err == nil && config.ServerName == "" {
		config.ServerName = host
	}
	return &HTTP1{address: address, dial: dial, config: config, idle: make(chan *conn, maxIdle)}
}

// CloseIdleConnections closes the unused connections.
func (t *HTTP1) CloseIdleConnections() {
	for {
		select {
		case c := <-t.idle:
			c.close()
		default:
			return
		}
	}
}

// RoundTrip implements http.RoundTripper. The response's body ends with the request's context.
func (t *HTTP1) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.send(req)
	if cause := context.Cause(req.Context()); err != nil && cause != nil {
		return nil, cause // not its effect on the connection
	}
	return res, err
}

func (t *HTTP1) send(req *http.Request) (*http.Response, error) {
	if err := checkRequest(req); err != nil {
		closeBody(req)
		return nil, err
	}
	if c := t.take(); c != nil {
		res, err := c.exchange(req)
		if err == nil || !c.mayRepeat(req) {
			return res, err
		}
		if req.GetBody != nil {
			again := *req
			if again.Body, err = req.GetBody(); err != nil {
				return nil, fmt.Errorf("reading the request body again: %w", err)
			}
			req = &again
		}
	}
	c, err := t.connect(req.Context())
	if err != nil {
		closeBody(req)
		return nil, err
	}
	return c.exchange(req)
}

// take returns a usable idle connection, or nil.
func (t *HTTP1) take() *conn {
	for {
		select {
		case c := <-t.idle:
			if c.expiry.Stop() && c.quiet() {
				return c
			}
			c.close()
		default:
			return nil
		}
	}
}

// put keeps a connection for the next request.
func (t *HTTP1) put(c *conn) {
	if time.Since(c.made) > maxAge {
		c.close()
		return
	}
	c.expiry = time.AfterFunc(idleFor, c.close)
	select {
	case t.idle <- c:
	default:
		c.close()
	}
}

// connect opens a connection. If it fails, nothing was sent, and neverSent is true for the error.
func (t *HTTP1) connect(ctx context.Context) (*conn, error) {
	under, err := t.dial(ctx, "tcp", t.address)
	if err == nil {
		line := &wire{Conn: under}
		secured := tls.Client(line, t.config)
		within, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		if err = secured.HandshakeContext(within); err == nil {
			return newConn(secured, line, t.put), nil
		}
		_ = under.Close()
		err = fmt.Errorf("TLS handshake: %w", err)
	}
	if neverSent(err) {
		return nil, err
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// checkRequest refuses requests that a server could parse as anything but one request with these headers. net/http
// writes some headers itself, but only in their canonical spelling.
func checkRequest(req *http.Request) error {
	target := req.URL.RequestURI()
	if !httpguts.ValidHeaderFieldName(req.Method) || req.Method == http.MethodConnect || strings.Contains(target, " ") ||
		!strings.HasPrefix(target, "/") && (target != "*" || req.Method != http.MethodOptions) {
		return fmt.Errorf("method %q for %q cannot be sent", req.Method, target)
	}
	for name, values := range req.Header {
		if !httpguts.ValidHeaderFieldName(name) || name != textproto.CanonicalMIMEHeaderKey(name) ||
			name == "Connection" || name == "Upgrade" {
			return fmt.Errorf("header %q cannot be sent", name)
		}
		if !httpguts.ValidHeaderFieldValue(strings.Join(values, "")) {
			return fmt.Errorf("the value of header %q cannot be sent", name)
		}
	}
	return nil
}
