package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// requestTimeout is when an answer is given up.
const requestTimeout = 60 * time.Second

// accepts are the encodings of objects that clients ask for.
const (
	acceptJSON     = "application/json"
	acceptProtobuf = "application/vnd.kubernetes.protobuf"
)

// style is how a client asks. The zero style is that of kubectl and of clients of custom resources: JSON, compressed,
// over HTTP/2.
type style struct {
	http1  bool
	plain  bool   // does not ask for gzip
	accept string // empty is JSON
}

func (s style) apply(req *http.Request, body bool) {
	if body {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", s.accept)
	if !s.plain {
		req.Header.Set("Accept-Encoding", "gzip")
	}
}

// client is a user's connections to one way, several at a time.
type client struct {
	url   string
	token string // of the user, if there is no certificate
	style style
	conns []*http.Client
}

// newClient makes a client with a number of connections, in the zero style. They are opened when they are used.
func newClient(config *rest.Config, connections int) (*client, error) {
	return newStyledClient(config, connections, style{})
}

func newStyledClient(config *rest.Config, connections int, as style) (*client, error) {
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	as.accept = cmp.Or(as.accept, acceptJSON)
	c := &client{url: config.Host, token: config.BearerToken, style: as}
	for range connections {
		c.conns = append(c.conns, &http.Client{Transport: newTransport(settings, as.http1, config.Dial)})
	}
	return c, nil
}

// newTransport leaves compression to client.do, which counts the bytes that came.
func newTransport(
	settings *tls.Config, http1 bool, dial func(ctx context.Context, network, address string) (net.Conn, error),
) *http.Transport {
	settings = settings.Clone()
	settings.NextProtos = nil
	transport := &http.Transport{TLSClientConfig: settings, DisableCompression: true, DialContext: dial}
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP1(http1)
	transport.Protocols.SetHTTP2(!http1)
	return transport
}

func (c *client) close() {
	for _, conn := range c.conns {
		conn.CloseIdleConnections()
	}
}

// request is what a worker asks for.
type request struct {
	method, path string
	body         []byte
	want         int         // status code
	orWant       int         // another one, zero for none
	large        bool        // the API server compresses the answer for clients that ask for it
	headers      http.Header // instead of those of the client's style
	until        []byte      // the answer, a stream, is read until this was in it
	headOnly     bool        // the answer, a stream, is closed when it has begun
}

func get(path string) request {
	return request{method: http.MethodGet, path: path, want: http.StatusOK}
}

// do makes a request on one of the connections, reads the whole answer as a client does that uses it, and returns how
// many bytes were sent.
func (c *client) do(ctx context.Context, connection int, r request) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := c.open(ctx, connection, r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was read to its end
	sent := &counted{reader: answer.Body}
	if err := r.read(answer, sent); err != nil {
		return sent.n, fmt.Errorf("reading the answer to %s %s: %w", r.method, r.path, err)
	}
	if compressed := isCompressed(answer); r.large && compressed == c.style.plain {
		return sent.n, fmt.Errorf("reading the answer to %s %s: compressed is %t", r.method, r.path, compressed)
	}
	return sent.n, nil
}

// counted counts what is read.
type counted struct {
	reader io.Reader
	n      int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	c.n += int64(n)
	return n, err
}

// decompressors are used again, as the HTTP client of Go does.
//
//nolint:gochecknoglobals // a pool is of use to all clients together
var decompressors = sync.Pool{New: func() any { return new(gzip.Reader) }}

func isCompressed(answer *http.Response) bool { return answer.Header.Get("Content-Encoding") == "gzip" }

func (r request) read(answer *http.Response, body io.Reader) error {
	if r.headOnly {
		return nil
	}
	if len(r.until) > 0 {
		return readUntil(body, r.until)
	}
	return readAnswer(answer, body)
}

// readUntil reads until what was sent contains the mark.
func readUntil(body io.Reader, mark []byte) error {
	var seen []byte
	buffer := make([]byte, 8<<10)
	for {
		n, err := body.Read(buffer)
		seen = append(seen, buffer[:n]...)
		if bytes.Contains(seen, mark) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("before %q: %w", mark, err)
		}
		seen = seen[max(0, len(seen)-len(mark)):]
	}
}

func readAnswer(answer *http.Response, body io.Reader) error {
	if !isCompressed(answer) {
		_, err := io.Copy(io.Discard, body)
		return err
	}
	decompressor := decompressors.Get().(*gzip.Reader)
	defer decompressors.Put(decompressor)
	if err := decompressor.Reset(body); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, decompressor)
	return err
}

// open makes a request and returns its answer, whose body is still to be read and closed.
func (c *client) open(ctx context.Context, connection int, r request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, c.url+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	if r.headers != nil {
		req.Header = r.headers.Clone()
	} else {
		c.style.apply(req, len(r.body) > 0)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.conns[connection%len(c.conns)].Do(req)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != r.want && answer.StatusCode != r.orWant {
		defer answer.Body.Close() //nolint:errcheck // an error is returned anyway
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 512))
		return nil, &wrongAnswer{request: r, code: answer.StatusCode, said: string(said)}
	}
	return answer, nil
}

// wrongAnswer is an answer with another status code than wanted.
type wrongAnswer struct {
	request request
	code    int
	said    string
}

func (e *wrongAnswer) Error() string {
	return fmt.Sprintf("%s %s was answered with %d: %s", e.request.method, e.request.path, e.code, e.said)
}

// parallel calls do with 0 to n-1, a number of them at a time. It stops at the first error.
func parallel(ctx context.Context, workers, n int, do func(i int) error) error {
	var mu sync.Mutex
	var next int
	var failed error
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		if failed == nil {
			failed = ctx.Err()
		}
		if failed != nil || next == n {
			return 0, false
		}
		next++
		return next - 1, true
	}
	var group sync.WaitGroup
	for range min(workers, n) {
		group.Go(func() {
			for i, ok := take(); ok; i, ok = take() {
				if err := do(i); err != nil {
					mu.Lock()
					if failed == nil {
						failed = err
					}
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	return failed
}
