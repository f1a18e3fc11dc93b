// Package clienttrust decides whether a client certificate is believed, and whom it names. It trusts what the API
// server trusts, which a ConfigMap of the cluster says, and the CA of the certificates that this product issues.
package clienttrust

import (
	"bytes"
	"sync"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"
)

// Store combines the signer CA with the CAs and settings that the cluster publishes. It parses PEM only after a change.
// It is safe for concurrent use.
type Store struct {
	signer func() []byte
	core   corev1client.CoreV1Interface
	clock  clock.PassiveClock

	mu      sync.Mutex
	cluster *settings
	last    *Trust
}

// NewStore makes a store that trusts the CAs in signer's PEM, and nothing else before Prime or Follow has read the
// cluster's settings from core. The signer is asked with each request; nil means that there is none.
func NewStore(signer func() []byte, core corev1client.CoreV1Interface, clk clock.PassiveClock) *Store {
	return &Store{signer: signer, core: core, clock: clk, cluster: &settings{}}
}

// Current returns what is trusted now. The same pointer means that nothing changed.
func (s *Store) Current() *Trust {
	s.mu.Lock()
	defer s.mu.Unlock()
	if signer := s.signer(); s.last == nil || s.last.cluster != s.cluster || !bytes.Equal(s.last.signer, signer) {
		s.last = newTrust(signer, s.cluster, s.clock)
	}
	return s.last
}
