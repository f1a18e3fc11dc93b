package apiservice

import (
	"bytes"
	"sync"
)

// Certificate holds the serving certificate of this replica. The zero value holds none. It is safe for concurrent use.
type Certificate struct {
	mu        sync.Mutex
	cert, key []byte
	listeners []func()
}

// CertKeyPEM returns the certificate chain and the private key, or nil while there are none. The caller must not modify
// them.
func (c *Certificate) CertKeyPEM() (certPEM, keyPEM []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cert, c.key
}

// OnChange registers changed, which is called after each change of the certificate. It must not block.
func (c *Certificate) OnChange(changed func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners = append(c.listeners, changed)
}

// set puts a certificate into service and reports whether it differs from the previous one.
func (c *Certificate) set(certPEM, keyPEM []byte) bool {
	c.mu.Lock()
	if bytes.Equal(c.cert, certPEM) && bytes.Equal(c.key, keyPEM) {
		c.mu.Unlock()
		return false
	}
	c.cert, c.key = certPEM, keyPEM
	listeners := c.listeners
	c.mu.Unlock()
	for _, changed := range listeners {
		changed()
	}
	return true
}
