package impersonator

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// ticketLifetime is how long one key encrypts session tickets.
const ticketLifetime = 24 * time.Hour

// tlsConfigs makes the TLS configuration of each handshake. Whenever the client CAs change, and once a day, it makes a
// new one with a new session ticket key: a session that was made when another CA was trusted cannot be resumed.
type tlsConfigs struct {
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	trust       *trustStore
	clock       clock.PassiveClock

	last atomic.Pointer[tlsGeneration]
	mu   sync.Mutex
}

type tlsGeneration struct {
	trust  *trust
	made   time.Time
	config *tls.Config
}

// base is the configuration that http.Server starts from. The one of each handshake is made by forClient.
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
		NextProtos: []string{"h2", "http/1.1"},
		// Requested, not required, and verified by the chain: a client may have a token instead.
		ClientAuth:     tls.RequestClientCert,
		GetCertificate: c.certificate,
	}
}

func (c *tlsConfigs) forClient(*tls.ClientHelloInfo) (*tls.Config, error) {
	trusted, now := c.trust.current(), c.clock.Now()
	if last := c.last.Load(); last.fits(trusted, now) {
		return last.config, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := c.last.Load(); last.fits(trusted, now) {
		return last.config, nil
	}
	config := c.settings()
	config.ClientCAs = trusted.named
	var key [32]byte
	if _, err := rand.Read(key[:]); err != nil {
		return nil, fmt.Errorf("making a session ticket key: %w", err)
	}
	// Without a key of its own, a configuration uses those of the base configuration, which outlive a change of CAs.
	config.SetSessionTicketKeys([][32]byte{key})
	c.last.Store(&tlsGeneration{trust: trusted, made: now, config: config})
	return config, nil
}

func (g *tlsGeneration) fits(trusted *trust, now time.Time) bool {
	return g != nil && g.trust == trusted && now.Sub(g.made) < ticketLifetime
}
