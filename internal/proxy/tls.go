package proxy

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/edge"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// ticketLifetime is how long one key encrypts session tickets.
const ticketLifetime = 24 * time.Hour

// tlsConfigs makes the TLS configuration for handshakes. It makes a new one, with a new session ticket key, when the
// client CAs or the serving certificate change, and once a day. Sessions from before such a change cannot be resumed.
// That matters because a resumed handshake does not ask for a client certificate again.
type tlsConfigs struct {
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	trust       *clienttrust.Store
	clock       clock.PassiveClock

	mu   sync.Mutex
	last *tlsGeneration
}

type tlsGeneration struct {
	trust  *clienttrust.Trust
	leaf   []byte // of the serving certificate; nil while there is none
	made   time.Time
	config *tls.Config
}

// base returns the configuration for http.Server. It calls forClient for the configuration of each handshake.
func (c *tlsConfigs) base() *tls.Config {
	config := c.settings()
	config.GetConfigForClient = c.forClient
	return config
}

func (c *tlsConfigs) settings() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// For TLS 1.2 only; the suites of TLS 1.3 are all AEAD and are not chosen here.
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		// Without P-521 and P-384: a client that repeats a recorded hello pays next to nothing for them, the proxy milliseconds.
		CurvePreferences: []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256},
		NextProtos:       []string{"h2", "http/1.1"},
		// Requested, not required, and verified by the chain: a client may have a token instead.
		ClientAuth:     tls.RequestClientCert,
		GetCertificate: c.certificate,
	}
}

func (c *tlsConfigs) forClient(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	config := c.current(hello)
	if hello == nil {
		return config, nil
	}
	if conn := edge.Below(hello.Conn); conn != nil {
		conn.Shaking(hello.Context().Done())
		config = config.Clone()
		config.VerifyConnection = func(state tls.ConnectionState) error {
			if user := c.knownUser(state.PeerCertificates); user != "" {
				conn.Claim(user)
			}
			return nil
		}
	}
	return config, nil
}

// knownUser returns the user whom a certificate names if it was found to be good before, and still is; otherwise "".
func (c *tlsConfigs) knownUser(presented []*x509.Certificate) string {
	known, ok, err := c.trust.Current().Known(clienttrust.Users, presented)
	if err != nil || !ok || request.IsAnonymous(known.User) {
		return ""
	}
	return known.User.GetName()
}

func (c *tlsConfigs) current(hello *tls.ClientHelloInfo) *tls.Config {
	trusted, leaf, now := c.trust.Current(), c.leaf(hello), c.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.fits(trusted, leaf, now) {
		return c.last.config
	}
	config := c.settings()
	config.ClientCAs = trusted.Named
	var key [32]byte
	_, _ = rand.Read(key[:]) // it never fails
	// Without a key of its own, a configuration uses those of the base configuration, which outlive a change of CAs.
	config.SetSessionTicketKeys([][32]byte{key})
	c.last = &tlsGeneration{trust: trusted, leaf: leaf, made: now, config: config}
	return config
}

// leaf is the serving certificate, without its chain; nil while there is none.
func (c *tlsConfigs) leaf(hello *tls.ClientHelloInfo) []byte {
	certificate, err := c.certificate(hello)
	if err != nil || certificate == nil || len(certificate.Certificate) == 0 {
		return nil // the handshake tells
	}
	return certificate.Certificate[0]
}

func (g *tlsGeneration) fits(trusted *clienttrust.Trust, leaf []byte, now time.Time) bool {
	return g != nil && g.trust == trusted && bytes.Equal(g.leaf, leaf) && now.Sub(g.made) < ticketLifetime
}
