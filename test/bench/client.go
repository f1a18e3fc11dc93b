package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

const requestTimeout = time.Minute

// client holds a user's connections to one target. It sends requests as kubectl does: JSON, compressed, over HTTP/2.
type client struct {
	url   string
	conns []*http.Client
}

// newClient returns a client with a number of connections, which are opened on first use.
func newClient(config *rest.Config, connections int, keepAlive bool) (*client, error) {
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	settings.NextProtos = nil
	c := &client{url: config.Host}
	for range connections {
		transport := &http.Transport{
			TLSClientConfig: settings.Clone(), DisableCompression: true, DisableKeepAlives: !keepAlive,
			Protocols: new(http.Protocols),
		}
		transport.Protocols.SetHTTP2(true)
		c.conns = append(c.conns, &http.Client{Transport: transport})
	}
	return c, nil
}

func (c *client) close() {
	for _, conn := range c.conns {
		conn.CloseIdleConnections()
	}
}

type request struct {
	method, path string
	body         []byte
	want         int // status code
}

func get(path string) request {
	return request{method: http.MethodGet, path: path, want: http.StatusOK}
}

// do sends a request on one of the connections and reads the whole response.
func (c *client) do(ctx context.Context, connection int, r request) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := c.open(ctx, connection, r)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it was read to its end
	if err := read(response); err != nil {
		return fmt.Errorf("reading the response to %s %s: %w", r.method, r.path, err)
	}
	return nil
}

// open sends a request and returns its response. The caller reads and closes the body.
func (c *client) open(ctx context.Context, connection int, r request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, c.url+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	if len(r.body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Accept-Encoding", "gzip")
	response, err := c.conns[connection%len(c.conns)].Do(req)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != r.want {
		defer response.Body.Close() //nolint:errcheck // an error is returned anyway
		message, _ := io.ReadAll(io.LimitReader(response.Body, 512))
		return nil, fmt.Errorf("%s %s: status %d: %s", r.method, r.path, response.StatusCode, message)
	}
	return response, nil
}

// decompressors are reused, as Go's HTTP client does.
//
//nolint:gochecknoglobals // shared by all clients
var decompressors = sync.Pool{New: func() any { return new(gzip.Reader) }}

func read(response *http.Response) error {
	if response.Header.Get("Content-Encoding") != "gzip" {
		_, err := io.Copy(io.Discard, response.Body)
		return err
	}
	decompressor := decompressors.Get().(*gzip.Reader) //nolint:forcetypeassert // nothing else is in the pool
	defer decompressors.Put(decompressor)
	if err := decompressor.Reset(response.Body); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, decompressor)
	return err
}
