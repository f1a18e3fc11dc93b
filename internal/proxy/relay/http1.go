package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

const (
	// handshakeTimeout bounds the TLS handshake of a new connection.
	handshakeTimeout = 10 * time.Second
	// maxAge is how long a connection is used at most. Otherwise an API server that has come back would get no requests
	// as long as the connections to the others last.
	maxAge = 5 * time.Minute
	// writtenFirst is the longest body that is written before the answer is read. It fits into the buffers of TCP. A longer
	// one is written beside, as a server may want its answer read before it reads the rest of the body.
	writtenFirst = 16 << 10
	// answerAfterBreak is how long an answer may take to arrive after the server stopped reading the request.
	answerAfterBreak = time.Second
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
	config  *tls.Config // nil: without TLS, for tests
	idle    pool
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
	return &HTTP1{address: address, dial: dial, config: config}
}

// CloseIdleConnections closes the connections that no request uses.
func (t *HTTP1) CloseIdleConnections() { t.idle.drain() }

// RoundTrip implements http.RoundTripper. The answer's body ends with the request's context.
func (t *HTTP1) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := checkRequest(req); err != nil {
		closeBody(req)
		return nil, err
	}
	req = withoutSpaces(req)
	c := t.idle.take()
	if c != nil {
		res, err := c.exchange(req)
		if err == nil || !c.mayRepeat(req) {
			return res, explain(req, err)
		}
		again, err := rewind(req)
		if err != nil {
			return nil, err
		}
		req = again
	}
	c, err := t.connect(req.Context())
	if err != nil {
		closeBody(req)
		return nil, explain(req, err)
	}
	res, err := c.exchange(req)
	return res, explain(req, err)
}

// explain returns why the context has ended, if it has, in place of what that did to the connection.
func explain(req *http.Request, err error) error {
	if cause := context.Cause(req.Context()); err != nil && cause != nil {
		return cause
	}
	return err
}

// connect opens a connection. Any error of it is a *net.OpError about dialling: nothing was sent.
func (t *HTTP1) connect(ctx context.Context) (*conn, error) {
	under, err := t.dial(ctx, "tcp", t.address)
	if err != nil {
		return nil, neverConnected(err)
	}
	line := newWire(under)
	if t.config == nil {
		return newConn(line, line, &t.idle), nil
	}
	secured := tls.Client(line, t.config)
	within, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := secured.HandshakeContext(within); err != nil {
		_ = under.Close()
		return nil, neverConnected(fmt.Errorf("shaking hands: %w", err))
	}
	return newConn(secured, line, &t.idle), nil
}

func neverConnected(err error) error {
	var dialing *net.OpError
	if errors.As(err, &dialing) && dialing.Op == "dial" {
		return err
	}
	return &net.OpError{Op: "dial", Net: "tcp", Err: err}
}

// rewind returns the request with its body from the beginning.
func rewind(req *http.Request) (*http.Request, error) {
	if req.GetBody == nil {
		return req, nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, fmt.Errorf("reading the request body again: %w", err)
	}
	again := *req
	again.Body = body
	return &again, nil
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// checkRequest refuses what could be read as something else than one request with these headers. net/http writes some
// names itself, but only in their usual spelling.
func checkRequest(req *http.Request) error {
	if !httpguts.ValidHeaderFieldName(req.Method) || req.Method == http.MethodConnect {
		return fmt.Errorf("method %q cannot be sent", req.Method)
	}
	target := req.URL.RequestURI()
	if !strings.HasPrefix(target, "/") && (target != "*" || req.Method != http.MethodOptions) {
		return fmt.Errorf("target %q cannot be sent", target)
	}
	for name, values := range req.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("header %q cannot be sent", name)
		}
		switch usual := textproto.CanonicalMIMEHeaderKey(name); usual {
		case "Connection", "Upgrade", "Keep-Alive", "Proxy-Connection":
			return fmt.Errorf("header %q is about a connection", name)
		case "Content-Length", "Transfer-Encoding", "Trailer", "Host", "User-Agent":
			if name != usual {
				return fmt.Errorf("header %q cannot be sent", name)
			}
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return fmt.Errorf("the value of header %q cannot be sent", name)
			}
		}
	}
	return nil
}

// withoutSpaces writes spaces of the query as HTTP/1.1 has them. HTTP/2 lets them pass.
func withoutSpaces(req *http.Request) *http.Request {
	if !strings.Contains(req.URL.RawQuery, " ") {
		return req
	}
	target := *req.URL
	target.RawQuery = strings.ReplaceAll(target.RawQuery, " ", "%20")
	clean := *req
	clean.URL = &target
	return &clean
}

// pool keeps idle connections. The one that was used last is used next, so that no more are kept than are needed. The
// zero value is ready.
type pool struct {
	mu    sync.Mutex
	idle  []*conn     // in the order in which they became idle
	timer *time.Timer // nil while there is none
}

// take returns a connection that can be used, or nil.
func (p *pool) take() *conn {
	for {
		p.mu.Lock()
		last := len(p.idle) - 1
		if last < 0 {
			p.mu.Unlock()
			return nil
		}
		c := p.idle[last]
		p.idle[last] = nil
		p.idle = p.idle[:last]
		p.mu.Unlock()
		if time.Since(c.since) < idleFor && c.quiet() {
			return c
		}
		c.close()
	}
}

func (p *pool) put(c *conn) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) >= maxIdle || now.Sub(c.made) > maxAge {
		c.close()
		return
	}
	c.since = now
	p.idle = append(p.idle, c)
	if p.timer == nil {
		p.timer = time.AfterFunc(idleFor, p.expire)
	}
}

// expire closes what has been idle for too long, and comes again as long as anything is idle.
func (p *pool) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := time.Now().Add(-idleFor)
	p.idle = slices.DeleteFunc(p.idle, func(c *conn) bool {
		late := !c.since.After(due)
		if late {
			c.close()
		}
		return late
	})
	if p.timer = nil; len(p.idle) > 0 {
		p.timer = time.AfterFunc(p.idle[0].since.Sub(due), p.expire)
	}
}

// drain closes everything that is idle.
func (p *pool) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.idle {
		c.close()
	}
	p.idle = nil
}
