package fleet

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// policy says which CA bundles are handed on.
type policy struct {
	now func() time.Time
	// roots are the system roots; nil for those of this machine.
	roots *x509.CertPool
	// allowOlder takes a bundle whose certificates are all older than those of the kubeconfig.
	allowOlder bool
	// expected are the only certificates that a bundle may have; empty for any. They are SHA-256 fingerprints.
	expected []string
}

// presented is the chain of certificates that an endpoint presented on one connection. That the endpoint has the key
// was shown by the handshake.
type presented []*x509.Certificate

// verifies says whether a client that expects host and trusts bundle accepts the chain.
func (p policy) verifies(chain presented, host string, bundle []byte) error {
	if len(chain) == 0 {
		return errors.New("no certificate was presented")
	}
	options := x509.VerifyOptions{
		DNSName: host, Roots: p.roots, Intermediates: x509.NewCertPool(), CurrentTime: p.now(),
	}
	if len(bundle) > 0 {
		options.Roots = x509.NewCertPool()
		if !options.Roots.AppendCertsFromPEM(bundle) {
			return errors.New("there is no certificate in the CA bundle")
		}
	}
	for _, certificate := range chain[1:] {
		options.Intermediates.AddCert(certificate)
	}
	if _, err := chain[0].Verify(options); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
	}
	return nil
}

// handing decides which entries get the CA bundle that came over a connection.
type handing struct {
	policy
	chain  presented
	bundle []byte

	mu   sync.Mutex
	seen map[[sha256.Size]byte]error // by host and old bundle
}

// accepts returns nil when an entry may have the bundle, and otherwise why not.
func (h *handing) accepts(trust kubeconfig.Trust) error {
	if trust.Err != nil {
		return trust.Err
	}
	key := sha256.Sum256([]byte(trust.Host + "\x00" + string(trust.CABundle)))
	h.mu.Lock()
	defer h.mu.Unlock()
	if err, known := h.seen[key]; known {
		return err
	}
	if h.seen == nil {
		h.seen = map[[sha256.Size]byte]error{}
	}
	err := h.decide(trust)
	h.seen[key] = err
	return err
}

func (h *handing) decide(trust kubeconfig.Trust) error {
	if err := h.verifies(h.chain, trust.Host, trust.CABundle); err != nil {
		return fmt.Errorf(
			"its own CA bundle does not verify what the endpoint presents, so nothing can be handed on "+
				"(--admin-kubeconfig helps): %w",
			err,
		)
	}
	if err := h.verifies(h.chain, trust.Host, h.bundle); err != nil {
		return fmt.Errorf("the advertised CA bundle does not verify what the endpoint presents: %w", err)
	}
	if old, offered := newest(
		trust.CABundle,
	), newest(
		h.bundle,
	); !h.allowOlder && len(h.bundle) > 0 &&
		offered.Before(old) {
		return fmt.Errorf(
			"the endpoint advertises an older CA bundle (of %s) than it has (of %s); if that is right, use --allow-older "+
				"or --admin-kubeconfig",
			offered.UTC().Format(time.DateOnly),
			old.UTC().Format(time.DateOnly),
		)
	}
	return nil
}

// unexpected returns an error when the bundle has a certificate that is not expected.
func (p policy) unexpected(bundle []byte) error {
	if len(p.expected) == 0 {
		return nil
	}
	members, _ := certs.ParseBundle(bundle)
	if len(members) == 0 {
		return errors.New("it advertises no CA bundle, and --expect-ca names the certificates that there must be")
	}
	for _, member := range members {
		if print := certs.Fingerprint(member.Raw); !slices.Contains(p.expected, print) {
			return fmt.Errorf("it advertises a CA bundle with certificate %s, which --expect-ca does not name", print)
		}
	}
	return nil
}

// newest returns the date from which the newest certificate of a bundle is valid.
func newest(bundle []byte) time.Time {
	var latest time.Time
	members, _ := certs.ParseBundle(bundle)
	for _, member := range members {
		if member.NotBefore.After(latest) {
			latest = member.NotBefore
		}
	}
	return latest
}
