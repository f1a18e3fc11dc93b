// Package signer issues the short-lived client certificates of logins.
//
// Signer signs with the agent's own CA, for the impersonation proxy. All replicas load it from the same Secret, so each
// accepts the certificates of the others. Cluster uses the cluster's own signer, for the API server itself.
package signer

import (
	"bytes"
	"crypto/ecdsa"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// AtProxyKey is the extra key that marks a login through the impersonation proxy. The value is the API group of the
// login. Users cannot set it at the proxy, because its suffix is reserved.
const AtProxyKey = "login.impersonation-proxy.concierge.pinniped.dev"

// ErrNotLoaded is returned while there is no CA: at startup, and while the impersonation proxy is disabled, which would
// not accept the certificates.
var ErrNotLoaded = errors.New("the client certificate signer is not loaded")

// Signer issues client certificates. The zero value has no CA yet. It is safe for concurrent use.
type Signer struct {
	// Clock is the clock for the validity of certificates; nil means the real clock.
	Clock clock.PassiveClock

	current atomic.Pointer[Generation]
	keys    keyStock
}

// Generation is an immutable state of the Signer.
type Generation struct {
	ca     *certs.CA
	bundle []byte
}

// Bundle returns the CA certificates (PEM) whose client certificates are accepted: the signing CA and the previous
// ones. The caller must not modify it.
func (g *Generation) Bundle() []byte { return g.bundle }

// Load makes ca the signing CA and keeps accepting the certificates of the CAs in previous (PEM). It reports whether
// anything changed.
func (s *Signer) Load(ca *certs.CA, previous []byte) bool {
	bundle := append(ca.CertPEM(), previous...)
	if old := s.current.Load(); old != nil && bytes.Equal(old.bundle, bundle) {
		return false
	}
	s.current.Store(&Generation{ca: ca, bundle: bundle})
	s.keys.refill()
	return true
}

// Clear removes the CA: nothing is signed or accepted any more. It reports whether there was one.
func (s *Signer) Clear() bool { return s.current.Swap(nil) != nil }

// Current returns the current state, or nil if there is none. The pointer stays the same until the state changes.
func (s *Signer) Current() *Generation { return s.current.Load() }

// IssueClientCertificate issues a client certificate that is valid for ttl. It returns ErrNotLoaded if there is no CA.
func (s *Signer) IssueClientCertificate(
	username string, groups, organizationalUnits []string, ttl time.Duration,
) (*certs.KeyPair, error) {
	generation := s.current.Load()
	if generation == nil {
		return nil, ErrNotLoaded
	}
	now := time.Now()
	if s.Clock != nil {
		now = s.Clock.Now()
	}
	key, err := s.keys.take()
	if err != nil {
		return nil, err
	}
	return generation.ca.IssueClientFor(key, certs.ClientIdentity{
		Username: username, Groups: groups, OrganizationalUnits: organizationalUnits,
	}, now, ttl)
}

// stock is how many keys are generated in advance: enough for a team that starts work at the same moment.
const stock = 64

// keyStock holds unused keys in memory, so that a login need not wait for key generation. Each is used once. The zero
// value is empty.
type keyStock struct {
	mu        sync.Mutex
	keys      []*ecdsa.PrivateKey
	refilling bool
}

// take returns an unused key.
func (k *keyStock) take() (*ecdsa.PrivateKey, error) {
	k.mu.Lock()
	var key *ecdsa.PrivateKey
	if last := len(k.keys) - 1; last >= 0 {
		key, k.keys[last] = k.keys[last], nil
		k.keys = k.keys[:last]
	}
	low := len(k.keys) < stock/2
	k.mu.Unlock()
	if low {
		k.refill()
	}
	if key != nil {
		return key, nil
	}
	return certs.NewKey()
}

// refill generates keys in the background until there are enough, in one goroutine at a time.
func (k *keyStock) refill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refilling {
		return
	}
	k.refilling = true
	go func() {
		for {
			key, err := certs.NewKey()
			k.mu.Lock()
			if err == nil {
				k.keys = append(k.keys, key)
			}
			if err != nil || len(k.keys) >= stock {
				k.refilling = false
				k.mu.Unlock()
				return // each login then generates its own key and gets the error
			}
			k.mu.Unlock()
		}
	}()
}
