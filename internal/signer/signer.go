// Package signer issues the short-lived client certificates with which users log in.
//
// Signer signs by a CA of the agent's own, for the impersonation proxy. Every replica loads it from the same Secret, so
// that each accepts what any other issued. Cluster has the cluster's own signer issue them, for the API server itself.
package signer

import (
	"bytes"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// AtProxyKey is the extra key by which the impersonation proxy says of a login that it goes through it. The value is
// the API group of the login. Users cannot set the key at the proxy: its suffix is reserved.
const AtProxyKey = "login.impersonation-proxy.concierge.pinniped.dev"

// ErrNotLoaded is returned while there is no CA to sign with: at start, and while the impersonation proxy is disabled.
// Nothing is signed then, because the proxy would not accept it.
var ErrNotLoaded = errors.New("the client certificate signer is not loaded")

// Signer issues client certificates. The zero value has no CA yet; it is safe for concurrent use.
type Signer struct {
	// Clock says when a certificate becomes valid; nil means the real clock.
	Clock clock.PassiveClock

	current atomic.Pointer[Generation]
	keys    keyStock
}

// Generation is one immutable state of the signer.
type Generation struct {
	ca     *certs.CA
	bundle []byte
}

// Bundle returns the PEM certificates of every CA whose client certificates are to be accepted: the one that signs,
// and those that signed before it. The caller must not change it.
func (g *Generation) Bundle() []byte { return g.bundle }

// Load makes ca the signing CA and goes on accepting what the CAs in previous (PEM) have signed.
// Loading what is loaded already changes nothing. It reports whether something changed.
func (s *Signer) Load(ca *certs.CA, previous []byte) bool {
	bundle := append(ca.CertPEM(), previous...)
	if old := s.current.Load(); old != nil && bytes.Equal(old.bundle, bundle) {
		return false
	}
	s.current.Store(&Generation{ca: ca, bundle: bundle})
	s.keys.refill()
	return true
}

// Clear forgets the CA: nothing is signed or accepted any more. It reports whether there was one.
func (s *Signer) Clear() bool { return s.current.Swap(nil) != nil }

// Current returns the state in force, or nil while there is none. The pointer is the same until the state changes.
func (s *Signer) Current() *Generation { return s.current.Load() }

// IssueClientCertificate issues a client certificate that is valid for ttl. It returns ErrNotLoaded while there is no
// CA.
func (s *Signer) IssueClientCertificate(
	username string,
	groups, organizationalUnits []string,
	ttl time.Duration,
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
		Username:            username,
		Groups:              groups,
		OrganizationalUnits: organizationalUnits,
	}, now, ttl)
}
