package relay

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// upstreamProblem says why a request could not be forwarded, or why the API server's answer could not be used.
type upstreamProblem int

const (
	problemUnreachable upstreamProblem = iota
	problemLost
	problemRefusedStream
	problemNoCredential
	problemCredential
	problemTooLarge
	problemProtocol
	numProblems
)

// Problems are their names in metrics.
var Problems = [numProblems]string{
	problemUnreachable:   "unreachable",
	problemLost:          "connection_lost",
	problemRefusedStream: "closed_before_use",
	problemNoCredential:  "no_credential",
	problemCredential:    "credential_refused",
	problemTooLarge:      "header_too_large",
	problemProtocol:      "wrong_protocol",
}

// String returns the name.
func (p upstreamProblem) String() string { return Problems[p] }

// Counts counts what happens on the way to the API server. The zero value is ready.
type Counts struct {
	Shared, Upgraded   atomic.Int64 // open connections
	Dialled, Undialled atomic.Int64
	Problems           [numProblems]atomic.Int64
}

func (c *Counts) problem(p upstreamProblem) { c.Problems[p].Add(1) }

// dialer wraps dial so that open is the number of its connections that are open.
func (c *Counts) dialer(dial dialFunc, open *atomic.Int64) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			c.Undialled.Add(1)
			return nil, err
		}
		c.Dialled.Add(1)
		open.Add(1)
		return &countedConn{Conn: conn, open: open}, nil
	}
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// countedConn is a connection that is subtracted from open when it is closed.
type countedConn struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

// SyscallConn implements syscall.Conn, for HTTP1 to look at a connection.
func (c *countedConn) SyscallConn() (syscall.RawConn, error) {
	if under, ok := c.Conn.(syscall.Conn); ok {
		return under.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}
