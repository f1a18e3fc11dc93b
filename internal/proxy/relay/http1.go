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
	// handshakeTimeout bounds the TLS handshake of a new connection.
	handshakeTimeout = 10 * time.Second
	// maxAge is how long a connection is used at most. Otherwise an API server that has come back would get no requests
	// as long as the connections to the others last.
	maxAge = 5 * time.Minute
	// maxIdle is how many connections wait for the next request. idleFor is for how long, which is less than the 90 s
	// after which the API server closes them.
	maxIdle = 32
	idleFor = 30 * time.Second
)

// HTTP1 sends requests over HTTP/1.1, each over a connection that no other request uses meanwhile. It is a
// http.RoundTripper.
type HTTP1 struct {
	address string
	dial    dialFunc
	config  *tls.Config
	idle    chan *conn
}

// NewHTTP1 returns a transport for the server at address (host:port), which config verifies. Its sessions are resumed.
func NewHTTP1(address string, config *tls.Config, dial dialFunc) *HTTP1 {
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	config.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	config.DynamicRecordSizingDisabled = true // one record for each request, and not one for each packet
	if host, _, err := net.SplitHostPort(address); err == nil && config.ServerName == "" {
		config.ServerName = host
	}
	return &HTTP1{address: address, dial: dial, config: config, idle: make(chan *conn, maxIdle)}
}

// CloseIdleConnections closes the connections that no request uses.
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
		return nil, cause // and not what its end did to the connection
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

// take returns an idle connection that can be used, or nil.
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

// connect opens a connection. Any error of it is a *net.OpError about dialling: nothing was sent.
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
		err = fmt.Errorf("shaking hands: %w", err)
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

// checkRequest refuses what could be read as something else than one request with these headers. net/http writes some
// names itself, but only in their usual spelling.
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
