package relay

import (
	"context"
	"crypto/tls"
	"errors"
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
	// writtenFirst is the longest body that is written before the answer is read. It fits into the buffers of TCP. A longer
	// one is written beside, as a server may want its answer read before it reads the rest of the body.
	writtenFirst = 16 << 10
	// answerAfterBreak is how long an answer may take to arrive after the server stopped reading the request.
	answerAfterBreak = time.Second
)

// HTTP1 sends requests over HTTP/1.1, each over a connection that no other request uses meanwhile. It is a
// http.RoundTripper.
type HTTP1 struct {
	address string
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	config  *tls.Config // nil: without TLS, for tests
	idle    pool
}

// NewHTTP1 returns a transport for the server at address (host:port), which config verifies. Its sessions are resumed.
func NewHTTP1(
	address string,
	config *tls.Config,
	dial func(ctx context.Context, network, address string) (net.Conn, error),
) *HTTP1 {
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
			return res, t.explain(req, err)
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
		return nil, t.explain(req, err)
	}
	res, err := c.exchange(req)
	return res, t.explain(req, err)
}

// explain returns why the context has ended, if it has, in place of what that did to the connection.
func (t *HTTP1) explain(req *http.Request, err error) error {
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
