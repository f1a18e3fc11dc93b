package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// requestTimeout is when an answer is given up.
const requestTimeout = 60 * time.Second

// client is a user's connections to one way, several at a time.
type client struct {
	url   string
	conns []*http.Client
}

// newClient makes a client with a number of HTTP/2 connections. They are opened when they are used.
func newClient(config *rest.Config, connections int) (*client, error) {
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	c := &client{url: config.Host}
	for range connections {
		c.conns = append(c.conns, &http.Client{Transport: newTransport(settings)})
	}
	return c, nil
}

func newTransport(settings *tls.Config) *http.Transport {
	settings = settings.Clone()
	settings.NextProtos = nil
	return &http.Transport{TLSClientConfig: settings, ForceAttemptHTTP2: true, DisableCompression: true}
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
	want         int // status code
}

func get(path string) request {
	return request{method: http.MethodGet, path: path, want: http.StatusOK}
}

// do makes a request on one of the connections, reads the whole answer, and returns its length.
func (c *client) do(ctx context.Context, connection int, r request) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := c.open(ctx, connection, r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was read to its end
	n, err := io.Copy(io.Discard, answer.Body)
	if err != nil {
		return n, fmt.Errorf("reading the answer to %s %s: %w", r.method, r.path, err)
	}
	return n, nil
}

// open makes a request and returns its answer, whose body is still to be read and closed.
func (c *client) open(ctx context.Context, connection int, r request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, c.url+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	if len(r.body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	answer, err := c.conns[connection%len(c.conns)].Do(req)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != r.want {
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
