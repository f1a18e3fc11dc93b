package serving

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Source says where a certificate comes from.
type Source string

// The sources.
const (
	SourceGenerated Source = "generated"
	SourceExternal  Source = "external"
)

// Certificate is a certificate for serving, with everything that is published about it. It is immutable.
type Certificate struct {
	Certificate tls.Certificate // with its Leaf
	Source      Source
	Secret      types.NamespacedName
	Bundle      []byte // CA bundle (PEM) to publish; empty when clients are to use their system roots
	// Own is the CA bundle that came with it, where Bundle has that of its successor as well: see Evaluate. Else nil.
	Own []byte
	// Delegated is true when Secret lies in another namespace, whose owner permits its use and can withdraw that.
	// Its key is not ours to copy: it is held in memory, and written nowhere.
	Delegated bool
	// Fallback is true for the generated certificate in place of a delegated one whose permission was withdrawn. No one
	// chose it, so the delegated one does not wait for clients of it.
	Fallback bool
}

// SHA256 returns the fingerprint of the leaf, in the form in which `pinniped ip-tls` prints it.
func (m *Certificate) SHA256() string { return certs.Fingerprint(m.Certificate.Leaf.Raw) }

// Chain returns the leaf, and the intermediates that are served with it.
func (m *Certificate) Chain() []*x509.Certificate {
	chain := []*x509.Certificate{m.Certificate.Leaf}
	for _, der := range m.Certificate.Certificate[1:] {
		if intermediate, err := x509.ParseCertificate(der); err == nil {
			chain = append(chain, intermediate)
		}
	}
	return chain
}

// ErrNoCertificate is what a TLS handshake ends with while there is no certificate to serve.
var ErrNoCertificate = errors.New("there is no serving certificate yet")

// Holder holds the certificate that is being served. The zero value holds none; it is safe for concurrent use.
type Holder struct {
	current    atomic.Pointer[Certificate]
	evaluation atomic.Pointer[Evaluation]
}

// Serve puts m into service: connections made from now on get it, those that exist go on. It returns what was served
// before, or nil.
func (h *Holder) Serve(m *Certificate) (before *Certificate) { return h.current.Swap(m) }

// Withdraw takes the certificate out of service, and forgets what was noted.
func (h *Holder) Withdraw() {
	h.current.Store(nil)
	h.evaluation.Store(nil)
}

// Note keeps what came out of judging the certificate that is asked for. That is not always the one in service: one
// that is refused never gets there.
func (h *Holder) Note(j Evaluation) { h.evaluation.Store(&j) }

// Evaluation returns what was noted last; the zero value if nothing was. It is for metrics and events.
func (h *Holder) Evaluation() Evaluation {
	if j := h.evaluation.Load(); j != nil {
		return *j
	}
	return Evaluation{}
}

// Revoke takes the certificate out of service if it is the one of a delegated Secret, and reports whether it was.
// It is for a permission that is gone: nothing is better than that.
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

// Current returns what is being served, or nil.
func (h *Holder) Current() *Certificate { return h.current.Load() }

// GetCertificate is for tls.Config. It returns ErrNoCertificate while nothing is in service.
func (h *Holder) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	m := h.current.Load()
	if m == nil {
		return nil, ErrNoCertificate
	}
	return &m.Certificate, nil
}
