package issuedcert

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// State is the content of a Secret at one point in time. It is immutable.
type State struct {
	// CA is the signing CA; nil if it is damaged. It may have expired: see Verdict.
	CA *certs.CA
	// Certificate has its Leaf set; it is nil if damaged or not part of the policy.
	Certificate *tls.Certificate

	policy         Policy
	now            time.Time
	written        time.Time // when the Secret was last stored, by the API server's clock; zero if unknown
	exists         bool
	data           map[string][]byte
	caErr          error
	certificateErr error
	next           *certs.CA
	previous       []*x509.Certificate // trusted in addition to CA and next
}

// Inspect reads a Secret; nil means that it does not exist.
func Inspect(policy Policy, secret *corev1.Secret, now time.Time) *State {
	return InspectUnder(nil, policy, secret, now)
}

// InspectUnder is Inspect for a Secret that holds a certificate but not its CA.
func InspectUnder(ca *certs.CA, policy Policy, secret *corev1.Secret, now time.Time) *State {
	if secret == nil {
		return inspect(policy, ca, nil, false, now)
	}
	s := inspect(policy, ca, secret.Data, true, now)
	s.written = secret.CreationTimestamp.Time
	for _, entry := range secret.ManagedFields {
		if entry.Time != nil && entry.Time.After(s.written) {
			s.written = entry.Time.Time
		}
	}
	return s
}

func inspect(policy Policy, ca *certs.CA, data map[string][]byte, exists bool, now time.Time) *State {
	s := &State{CA: ca, policy: policy, now: now, exists: exists, data: data}
	if policy.CA != nil {
		s.readCA(policy.CA)
	}
	if policy.Certificate != nil {
		keys := policy.Certificate.Keys
		var pair tls.Certificate
		if pair, s.certificateErr = tls.X509KeyPair(data[keys.Certificate], data[keys.PrivateKey]); s.certificateErr == nil {
			s.Certificate = &pair
		}
	}
	return s
}

func (s *State) readCA(policy *CAPolicy) {
	s.CA, s.caErr = certs.LoadCA(s.data[policy.Keys.Certificate], s.data[policy.Keys.PrivateKey])
	if policy.Succession == nil {
		return
	}
	s.previous = unexpired(s.data[policy.Succession.Previous], s.now)
	if !policy.announced() {
		return
	}
	next, err := certs.LoadCA(s.data[policy.Succession.Next.Certificate], s.data[policy.Succession.Next.PrivateKey])
	if err == nil && s.now.Before(next.Certificate().NotAfter) {
		s.next = next
	}
	if s.caErr != nil {
		// Perhaps only the CA's key is lost. Certificates that it signed stay in use until replaced, so it stays
		// trusted.
		s.previous = append(s.previous, unexpired(s.data[policy.Keys.Certificate], s.now)...)
	}
}

// unexpired returns the distinct unexpired CA certificates of a PEM bundle.
func unexpired(bundle []byte, now time.Time) []*x509.Certificate {
	const limit = 8 // far more than renewals can accumulate
	var found []*x509.Certificate
	for len(found) < limit {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || !cert.IsCA || !now.Before(cert.NotAfter) || slices.ContainsFunc(found, cert.Equal) {
			continue
		}
		found = append(found, cert)
	}
	return found
}

// Data returns the content of the Secret. The caller must not modify it.
func (s *State) Data() map[string][]byte { return s.data }

// Names returns the names that the certificate is valid for, sorted.
func (s *State) Names() []string {
	return sortedNames(certs.SANs{DNSNames: s.Certificate.Leaf.DNSNames, IPAddresses: s.Certificate.Leaf.IPAddresses})
}

// NotAfter returns when the certificate expires, or the CA if there is no certificate.
func (s *State) NotAfter() time.Time {
	if s.Certificate != nil {
		return s.Certificate.Leaf.NotAfter
	}
	return s.CA.Certificate().NotAfter
}

// Bundle returns all trusted CA certificates as PEM: the current, the next and the previous ones.
func (s *State) Bundle() []byte {
	var authorities []*x509.Certificate
	for _, ca := range []*certs.CA{s.CA, s.next} {
		if ca != nil {
			authorities = append(authorities, ca.Certificate())
		}
	}
	return encode(append(authorities, s.previous...))
}

// PreviousBundle returns the unexpired previous CA certificates as PEM.
func (s *State) PreviousBundle() []byte { return encode(s.previous) }

// Follows reports whether ca is a predecessor of the CA in s.
func (s *State) Follows(ca *certs.CA) bool {
	return slices.ContainsFunc(s.previous, ca.Certificate().Equal)
}

// SameCA reports whether other, which may be nil, holds the same CA.
func (s *State) SameCA(other *State) bool {
	return s.CA != nil && other != nil && other.CA != nil && s.CA.Certificate().Equal(other.CA.Certificate())
}

// SignedByCA reports whether the CA issued the certificate, regardless of its names and dates.
func (s *State) SignedByCA() bool {
	return s.Certificate != nil && s.CA != nil && s.Certificate.Leaf.CheckSignatureFrom(s.CA.Certificate()) == nil
}

func encode(authorities []*x509.Certificate) []byte {
	var bundle []byte
	for i, cert := range authorities {
		if slices.ContainsFunc(authorities[:i], cert.Equal) {
			continue
		}
		bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return bundle
}

// verify returns why clients that trust the CA would reject the certificate. If the agent's clock is behind the CA's
// NotBefore, it verifies at NotBefore instead, so that a trusted CA is not replaced because of the clock.
func (s *State) verify() error {
	roots := x509.NewCertPool()
	roots.AddCert(s.CA.Certificate())
	at := slices.MaxFunc([]time.Time{s.now, s.CA.Certificate().NotBefore}, time.Time.Compare)
	if _, err := s.Certificate.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return fmt.Errorf("clients that trust the CA reject the certificate: %w", err)
	}
	return nil
}

// RenewAt returns when two thirds of a certificate's lifetime have passed.
func RenewAt(cert *x509.Certificate) time.Time {
	return cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) / 3 * 2)
}

// Due returns when the passage of time alone can next cause a Verdict. It requires a State without a Verdict.
func (s *State) Due() time.Time {
	var moments []time.Time
	if s.CA != nil && s.policy.CA != nil {
		moments = append(moments, s.CA.Certificate().NotAfter.Add(-s.policy.CA.margin()))
		switch {
		case s.next != nil:
			moments = append(moments, s.announcedUntil())
		case s.policy.CA.Succession != nil:
			moments = append(moments, RenewAt(s.CA.Certificate()))
		}
	}
	if s.Certificate != nil {
		moments = append(moments, RenewAt(s.Certificate.Leaf), s.Certificate.Leaf.NotAfter)
	}
	for _, old := range s.previous {
		moments = append(moments, old.NotAfter)
	}
	moments = slices.DeleteFunc(moments, func(moment time.Time) bool { return !moment.After(s.now) })
	if len(moments) == 0 {
		return time.Time{}
	}
	return slices.MinFunc(moments, time.Time.Compare)
}

// announcedUntil is when the announcement of the next CA ends.
func (s *State) announcedUntil() time.Time {
	return s.next.Certificate().NotBefore.Add(certs.Backdate + s.policy.CA.Succession.Announcement)
}
