package impersonator

import (
	"context"
	"net"
	"time"
)

const (
	// burstFrom is how much has to have come without a gap before more than TLS asks for is read at a time.
	burstFrom = 32 << 10
	// burstBuffer is how much is read at a time then.
	burstBuffer = 64 << 10
	// burstGap is what ends a burst.
	burstGap = 5 * time.Millisecond
)

// burstConn is a connection to the API server, below TLS. The API server sends a compressed list as it is being made,
// in a hundred pieces of a few kilobytes, and crypto/tls reads them one by one. While much is coming, burstConn reads
// all that there is at once. It waits for nothing: what was read is passed on, and reading goes on when that is used up.
type burstConn struct {
	net.Conn
	// The rest is used by the one goroutine that reads.
	buffer []byte // nil as long as little comes
	unread []byte // part of buffer
	err    error  // came with unread
	burst  int    // how much came without a gap
	last   time.Time
}

// inBursts wraps dial so that it makes such connections.
func inBursts(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &burstConn{Conn: conn}, nil
	}
}

// Read implements net.Conn.
func (c *burstConn) Read(p []byte) (int, error) {
	if len(c.unread) == 0 && c.err == nil {
		if c.burst < burstFrom {
			c.buffer = nil
			n, err := c.Conn.Read(p)
			c.came(n)
			return n, err
		}
		if c.buffer == nil {
			c.buffer = make([]byte, burstBuffer)
		}
		n, err := c.Conn.Read(c.buffer)
		c.came(n)
		c.unread, c.err = c.buffer[:n], err
	}
	n := copy(p, c.unread)
	c.unread = c.unread[n:]
	if len(c.unread) > 0 {
		return n, nil
	}
	err := c.err
	c.err = nil
	return n, err
}

// came notes how much was read.
func (c *burstConn) came(n int) {
	now := time.Now()
	if now.Sub(c.last) > burstGap {
		c.burst = 0
	}
	c.burst += n
	c.last = now
}
