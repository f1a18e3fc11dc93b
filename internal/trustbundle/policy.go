package trustbundle

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Policy says which CA bundles a kubeconfig entry adopts.
type Policy struct {
	Now func() time.Time
	// Roots are the system roots; nil for those of this machine.
	Roots *x509.CertPool
	// AllowOlder permits a bundle whose newest certificate is older than that of the kubeconfig.
	AllowOlder bool
	// Expected are the only certificates that a bundle may contain; empty for any. See ParseExpected.
	Expected []string
}

var fingerprint = regexp.MustCompile(`^[0-9a-f]{64}$`)

// NoneExpected is the value of --expect-ca that refuses every CA bundle.
const NoneExpected = "none"

// ParseExpected normalizes SHA-256 fingerprints for Policy.Expected. NoneExpected is valid as well.
func ParseExpected(fingerprints []string) ([]string, error) {
	parsed := make([]string, 0, len(fingerprints))
	for _, text := range fingerprints {
		one := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(strings.TrimSpace(text)), "sha256:"), ":", "")
		if one != NoneExpected && !fingerprint.MatchString(one) {
			return nil, fmt.Errorf("%q is neither a SHA-256 fingerprint (64 hex digits) nor %q", text, NoneExpected)
		}
		parsed = append(parsed, one)
	}
	return parsed, nil
}

// Verifies returns nil if a client that connects to host and trusts bundle accepts the chain. An empty bundle means the
// system roots.
func (p Policy) Verifies(chain []*x509.Certificate, host string, bundle []byte) error {
	if len(chain) == 0 {
		return errors.New("no certificate was presented")
	}
	options := x509.VerifyOptions{
		DNSName: host, Roots: p.Roots, Intermediates: x509.NewCertPool(), CurrentTime: p.Now(),
	}
	if len(bundle) > 0 {
		options.Roots = x509.NewCertPool()
		if !options.Roots.AppendCertsFromPEM(bundle) {
			return errors.New("the CA bundle has no certificate")
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

// Anchors returns the candidates that verify the chain as the only CA of a client that connects to host. If host is
// empty, names are not checked.
func (p Policy) Anchors(chain []*x509.Certificate, host string, candidates []*x509.Certificate) []*x509.Certificate {
	var anchors []*x509.Certificate
	for _, candidate := range candidates {
		if p.Verifies(chain, host, PEM(candidate)) == nil {
			anchors = append(anchors, candidate)
		}
	}
	return anchors
}

// PEM encodes a certificate.
func PEM(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}

// Unexpected returns an error if the bundle contains a certificate that is not expected.
func (p Policy) Unexpected(bundle []byte) error {
	if len(p.Expected) == 0 {
		return nil
	}
	members, _ := certs.ParseBundle(bundle)
	if len(members) == 0 {
		return errors.New("it publishes no CA bundle, but --expect-ca requires certificates")
	}
	for _, member := range members {
		if print := certs.Fingerprint(member.Raw); !slices.Contains(p.Expected, print) {
			return fmt.Errorf("it publishes a CA bundle with certificate %s, which is not in --expect-ca", print)
		}
	}
	return nil
}

// Received is a CA bundle from a trust bundle endpoint. It must not be copied.
type Received struct {
	Policy
	// Chain is the certificate chain of that connection. The handshake has proved that the endpoint has the key.
	Chain []*x509.Certificate
	PEM   []byte

	mu      sync.Mutex
	results map[[sha256.Size]byte]error // by host and old bundle
}

// Accepts returns nil if an entry may adopt the bundle, and otherwise why not. It caches the results.
func (b *Received) Accepts(trust kubeconfig.Trust) error {
	if trust.Err != nil {
		return trust.Err
	}
	key := sha256.Sum256([]byte(trust.Host + "\x00" + string(trust.CABundle)))
	b.mu.Lock()
	defer b.mu.Unlock()
	if err, known := b.results[key]; known {
		return err
	}
	if b.results == nil {
		b.results = map[[sha256.Size]byte]error{}
	}
	err := b.decide(trust)
	b.results[key] = err
	return err
}

func (b *Received) decide(trust kubeconfig.Trust) error {
	if err := b.Verifies(b.Chain, trust.Host, trust.CABundle); err != nil {
		return fmt.Errorf(
			"its own CA bundle does not verify the endpoint's certificate, so it cannot adopt a new one "+
				"(use --admin-kubeconfig): %w",
			err,
		)
	}
	if err := b.Verifies(b.Chain, trust.Host, b.PEM); err != nil {
		return fmt.Errorf("the published CA bundle does not verify the endpoint's certificate: %w", err)
	}
	old, offered := newest(trust.CABundle), newest(b.PEM)
	if !b.AllowOlder && len(b.PEM) > 0 && offered.Before(old) {
		return fmt.Errorf(
			"the endpoint publishes an older CA bundle (of %s) than the kubeconfig has (of %s); if intended, name its "+
				"certificates with --expect-ca, or use --admin-kubeconfig",
			offered.UTC().Format(time.DateOnly),
			old.UTC().Format(time.DateOnly),
		)
	}
	for _, certificate := range Added(trust.CABundle, b.PEM) {
		if err := b.usable(certificate); err != nil {
			return fmt.Errorf("the endpoint publishes %s, which %w", Name(certificate), err)
		}
	}
	return nil
}

// usable returns an error for a certificate that verifies no server, so that there is no reason to adopt it.
func (p Policy) usable(certificate *x509.Certificate) error {
	switch {
	case p.Now().After(certificate.NotAfter):
		return fmt.Errorf("expired on %s", certificate.NotAfter.UTC().Format(time.DateOnly))
	case !certificate.IsCA && (certificate.Version >= 3 || certificate.BasicConstraintsValid),
		certificate.KeyUsage != 0 && certificate.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("is not the certificate of a CA")
	}
	return nil
}

// Added returns the certificates of the offered bundle that the old one does not contain.
func Added(old, offered []byte) []*x509.Certificate {
	known, _ := certs.ParseBundle(old)
	members, _ := certs.ParseBundle(offered)
	return slices.DeleteFunc(members, func(member *x509.Certificate) bool {
		return slices.ContainsFunc(known, member.Equal)
	})
}

// Name returns the subject of a certificate, quoted because it is untrusted, and its fingerprint.
func Name(certificate *x509.Certificate) string {
	return fmt.Sprintf("%.120q (SHA-256 %s)", certificate.Subject.String(), certs.Fingerprint(certificate.Raw))
}

// Names is Name for several certificates.
func Names(certificates []*x509.Certificate) string {
	names := make([]string, len(certificates))
	for i, certificate := range certificates {
		names[i] = Name(certificate)
	}
	return strings.Join(names, ", ")
}

// newest returns the latest NotBefore in a bundle.
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
