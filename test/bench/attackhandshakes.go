package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
)

// handshakesEach is how many handshakes go on at a time for one connection of an attacker's. Three times as many are as
// many connections as clients without a user may have.
const handshakesEach = 170

var errGivenUp = errors.New("the attacker gave the handshake up")

// handshakes connects again and again, on as many connections as there may be. Half of the handshakes are complete, and
// half are given up as soon as something of the proxy's flight has come.
func handshakes(ctx context.Context, a *attacker) {
	a.each(ctx, a.Connections*handshakesEach, func(worker int) error {
		if worker%2 == 0 {
			conn, err := a.dial(ctx, "h2")
			if err != nil {
				return err
			}
			return conn.Close()
		}
		conn, err := a.dialTCP(ctx)
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // it is given up
		_ = tls.Client(&givingUp{Conn: conn}, a.configFor("h2")).HandshakeContext(ctx)
		return nil
	})
}

// givingUp is a connection of which nothing is read but the first byte.
type givingUp struct {
	net.Conn
}

// Read implements net.Conn.
func (c *givingUp) Read(p []byte) (int, error) {
	if _, err := c.Conn.Read(p[:1]); err != nil {
		return 0, err
	}
	return 0, errGivenUp
}

// replays sends the same client hello again and again, on as many connections as there may be, and gives each up as soon
// as the proxy's flight comes. So the attacker computes nothing: no key, no secret, no signature.
func replays(ctx context.Context, a *attacker) {
	hello := a.hello(ctx)
	a.each(ctx, a.Connections*handshakesEach, func(int) error {
		conn, err := a.dialTCP(ctx)
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // it is given up
		if _, err := conn.Write(hello); err != nil {
			return err
		}
		_, err = io.ReadFull(conn, make([]byte, 1))
		return err
	})
}

// dialTCP connects without TLS.
func (a *attacker) dialTCP(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.Address)
	if err != nil {
		return nil, err
	}
	a.connections.Add(1)
	// Ports run out when they are kept for a minute after each connection.
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return conn, nil
}

// configFor is for a handshake that asks for a protocol.
func (a *attacker) configFor(protocol string) *tls.Config {
	config := a.tls.Clone()
	config.NextProtos = []string{protocol}
	return config
}
