package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"time"
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
		conn, err := a.dialTCP(ctx, nil)
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
// as the proxy's flight comes. So the attacker computes nothing: no key, no secret, no signature. The hello offers one
// curve, if one is given.
func replays(curve tls.CurveID) func(ctx context.Context, a *attacker) {
	return func(ctx context.Context, a *attacker) {
		if curve != 0 {
			a = a.with(func(config *tls.Config) { config.CurvePreferences = []tls.CurveID{curve} })
		}
		hello := a.hello(ctx)
		a.each(ctx, a.Connections*handshakesEach, func(int) error {
			conn, err := a.dialTCP(ctx, nil)
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
}

// badSignatures presents a certificate with a key of P-521, whose signature the proxy has to verify and finds wrong.
func badSignatures(ctx context.Context, a *attacker) {
	const each = 20
	key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		a.failed.Add(1)
		return
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "attacker"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		a.failed.Add(1)
		return
	}
	signature, err := key.Sign(rand.Reader, make([]byte, sha512.Size), crypto.SHA512) // of something else
	if err != nil {
		a.failed.Add(1)
		return
	}
	a = a.as(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: badSigner{key.Public(), signature}})
	a.each(ctx, a.Connections*each, func(int) error {
		conn, err := a.dial(ctx, "h2")
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // it is over
		_, _ = conn.Read(make([]byte, 1))
		a.closed.Add(1)
		return nil
	})
}

// badSigner has one signature for everything, so that it costs nothing.
type badSigner struct {
	public    crypto.PublicKey
	signature []byte
}

// Public implements crypto.Signer.
func (s badSigner) Public() crypto.PublicKey { return s.public }

// Sign implements crypto.Signer.
func (s badSigner) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) { //nolint:unparam // as the interface is
	return s.signature, nil
}

// halfOpen connects from many addresses, and says nothing.
func halfOpen(ctx context.Context, a *attacker) {
	const each, addresses = 2000, 200
	a.each(ctx, a.Connections*each, func(worker int) error {
		conn, err := a.dialTCP(ctx, &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+worker%addresses))})
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // it is given up
		_, _ = io.Copy(io.Discard, conn)
		a.closed.Add(1)
		return nil
	})
}

// dialTCP connects without TLS, from an address unless it is nil.
func (a *attacker) dialTCP(ctx context.Context, from net.Addr) (net.Conn, error) {
	conn, err := (&net.Dialer{LocalAddr: from}).DialContext(ctx, "tcp", a.Address)
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
