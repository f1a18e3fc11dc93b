package serving

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Source is the origin of a certificate.
type Source string

// The values of Source.
const (
	SourceGenerated Source = "generated"
	SourceExternal  Source = "external"
)

// Certificate is a serving certificate with everything that is published about it. It is immutable.
type Certificate struct {
	Certificate tls.Certificate // with its Leaf
	Source      Source
	Secret      types.NamespacedName
	Bundle      []byte // CA bundle (PEM) to publish; empty for the clients' system roots
	// Own is the CA bundle that came with it, if Bundle has that of its successor as well: see Evaluate. Else nil.
	Own []byte
	// Delegated is true if Secret is in another namespace, whose owner can withdraw the permission to use it. The agent
	// must not copy its key: it stays in memory.
	Delegated bool
	// Fallback is true for the generated certificate that replaces a delegated one after its permission was withdrawn.
	// No administrator chose it, so a delegated certificate replaces it without waiting for its clients.
	Fallback bool
}

// SHA256 returns the fingerprint of the leaf, formatted as `pinniped ip-tls` prints it.
func (m *Certificate) SHA256() string { return certs.Fingerprint(m.Certificate.Leaf.Raw) }

// Chain returns the leaf and the intermediates that are served with it.
func (m *Certificate) Chain() []*x509.Certificate {
	chain := []*x509.Certificate{m.Certificate.Leaf}
	for _, der := range m.Certificate.Certificate[1:] {
		if intermediate, err := x509.ParseCertificate(der); err == nil {
			chain = append(chain, intermediate)
		}
	}
	return chain
}

// ErrNoCertificate is the error of TLS handshakes while there is no certificate to serve.
var ErrNoCertificate = errors.New("there is no serving certificate yet")

// Holder holds the certificate in service. The zero value holds none. It is safe for concurrent use.
type Holder struct {
	current    atomic.Pointer[Certificate]
	evaluation atomic.Pointer[Evaluation]
}

// Serve puts m into service for new connections; existing ones are unaffected. It returns the previous certificate, or
// nil.
func (h *Holder) Serve(m *Certificate) (before *Certificate) { return h.current.Swap(m) }

// Withdraw takes the certificate out of service and discards the evaluation.
func (h *Holder) Withdraw() {
	h.current.Store(nil)
	h.evaluation.Store(nil)
}

// Note stores the evaluation of the requested certificate. If that is refused, it is not the one in service.
func (h *Holder) Note(j Evaluation) { h.evaluation.Store(&j) }

// Evaluation returns the evaluation that Note stored last, or the zero value. It is for metrics and events.
func (h *Holder) Evaluation() Evaluation {
	if j := h.evaluation.Load(); j != nil {
		return *j
	}
	return Evaluation{}
}

// Revoke takes the certificate out of service if it comes from this delegated Secret, and reports whether it did. It is
// for a withdrawn permission: serving nothing is better than serving without permission.
func (h *Holder) Revoke(secret types.NamespacedName) bool {
	for {
		m := h.current.Load()
		if m == nil || !m.Delegated || m.Secret != secret {
			return false
		}
		if h.current.CompareAndSwap(m, nil) {
			return true
		}
	}
}

// Current returns the certificate in service, or nil.
func (h *Holder) Current() *Certificate { return h.current.Load() }

// GetCertificate implements tls.Config.GetCertificate. It returns ErrNoCertificate while nothing is in service.
func (h *Holder) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	m := h.current.Load()
	if m == nil {
		return nil, ErrNoCertificate
	}
	return &m.Certificate, nil
}
