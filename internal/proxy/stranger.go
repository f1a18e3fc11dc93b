package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"time"
)

const (
	// maxHandshake is how many bytes a client may send until its certificates have been read: eight large ones with RSA
	// keys of 4096 bits, in a session ticket too, and room. All are parsed before any can be refused.
	maxHandshake = 32 << 10
	// While the share of refusals is full, the end of a handshake is read handshakePiece bytes at a time, so that not much
	// is read of what follows it. Then strangerBurst bytes are read at once as long as there is no user, and strangerPiece
	// after each strangerPause.
	handshakePiece = 128
	strangerBurst  = 256
	strangerPiece  = 512
	strangerPause  = time.Millisecond
	// crowdedPiece is the same while a request would have to wait. The shortest one takes some 40 bytes when it comes alone,
	// and some 15 when it comes with others.
	crowdedPiece = 64
	// refusalPause is how long the last refusal of such a connection waits then. A client that waits for its answers
	// cannot come again sooner.
	refusalPause = 100 * time.Millisecond
)

// The text is what net/http logs, and is known to handshakeCauses.
var errHandshakeTooLarge = errors.New("the client sent too much before the end of the TLS handshake")

// received is what was read from a connection of which not much is known yet. The one goroutine that reads uses it, but
// for certified.
type received struct {
	greeted   bool // the ClientHello has been read
	handshake int  // bytes, until certified
	since     int  // bytes since then that were read under attack
	// user is whom a certificate that was verified before names. It is not certain before the end of the handshake,
	// when shaken is closed, that the client has its key. Then it is "" again.
	user   string
	shaken <-chan struct{}
}

// moderate returns how much of p may be read now. It bounds the handshake. Under attack it lets strangers wait a moment
// again and again: net/http reads ahead, and would have made a request of everything that has come before the first one is
// refused. A client that has less to say than the burst, or turns out to be a user, waits for nothing.
func (c *clientConn) moderate(p []byte) ([]byte, error) {
	switch {
	case !c.certified.Load():
		room := maxHandshake - c.received.handshake
		if room <= 0 {
			return nil, errHandshakeTooLarge
		}
		if c.received.greeted && c.underAttack() {
			room = min(room, handshakePiece)
		}
		return p[:min(len(p), room)], nil
	case c.user.Load() != nil:
		return p, nil
	case !c.underAttack():
		// What is read has to be decoded, or to wait for memory. As much as is read in any case comes alone.
		if room := unusedTolerated - c.unused.bytes.Load(); room > 0 {
			p = p[:min(int64(len(p)), room)]
		}
		return p, nil
	case c.received.since < strangerBurst:
		return p[:min(len(p), strangerBurst-c.received.since)], nil
	}
	c.waitOrGone(strangerPause)
	piece := strangerPiece
	if c.gate.isCrowded() {
		piece = crowdedPiece
	}
	return p[:min(len(p), piece)], nil
}

// arrived counts what was read.
func (c *clientConn) arrived(n int) {
	switch {
	case !c.certified.Load():
		c.received.handshake += n
	case c.received.since < strangerBurst:
		c.received.since += n
	}
	if c.shut.Load() {
		c.readSince += n
	}
}

// hesitate waits before a refusal under attack, which is the last answer on the connection. In HTTP/2 nothing is read any
// more, unless the answers to other requests are under way: their client may have to open its windows. In HTTP/1, where
// nothing becomes a request before the answer, net/http waits for its reader.
func (c *clientConn) hesitate(ctx context.Context) {
	if c.user.Load() != nil || !c.underAttack() {
		return
	}
	if !c.unused.http1.Load() && c.serving.Load() == 1 {
		c.gate.refuse()
	}
	timer := time.NewTimer(refusalPause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-c.gone:
	case <-timer.C:
	}
}

// underAttack is true when so much of what clients without a user ask is refused or reset that none of them deserves
// patience.
func (c *clientConn) underAttack() bool { return c.all.budget.IsMisused(c.client()) }

// forHandshake returns a configuration for the handshake of one client, when it is its turn. It notes when the client's
// certificates have been read: what follows in the handshake is short. When the client has also shown that it has the
// key, the connection counts for the user whom knownUser tells.
func forHandshake(
	config *tls.Config, hello *tls.ClientHelloInfo, knownUser func([]*x509.Certificate) string,
) (*tls.Config, error) {
	if hello == nil {
		return config, nil
	}
	conn, ok := hello.Conn.(*clientConn)
	if !ok {
		return config, nil
	}
	conn.received.greeted = true
	if err := conn.beginTurn(hello.Context()); err != nil {
		return nil, err
	}
	config = config.Clone()
	certificate := config.GetCertificate
	config.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		// A HelloRetryRequest has ended the first turn.
		if err := conn.beginTurn(hello.Context()); err != nil {
			return nil, err
		}
		return certificate(hello)
	}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		conn.unused.http1.Store(state.NegotiatedProtocol != "h2")
		conn.received.user, conn.received.shaken = knownUser(state.PeerCertificates), hello.Context().Done()
		conn.certified.Store(true)
		return nil
	}
	return config, nil
}
