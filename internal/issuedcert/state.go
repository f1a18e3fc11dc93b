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

// State is what a Secret held at one moment. It is immutable.
type State struct {
	// CA is the one that signs; nil if it is damaged. It may have expired: Verdict tells.
	CA *certs.CA
	// Certificate has its Leaf; nil if it is damaged, or not part of the policy.
	Certificate *tls.Certificate

	policy         Policy
	now            time.Time
	written        time.Time // when the API server stored the Secret last, by its clock; zero if that is not known
	exists         bool
	data           map[string][]byte
	caErr          error
	certificateErr error
	next           *certs.CA
	previous       []*x509.Certificate // trusted besides CA and next
}

// Inspect reads a Secret, which is nil when it does not exist.
func Inspect(policy Policy, secret *corev1.Secret, now time.Time) *State {
	return InspectUnder(nil, policy, secret, now)
}

// InspectUnder is Inspect for a Secret that holds a certificate, but not its CA.
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
		if pair, err := tls.X509KeyPair(data[keys.Certificate], data[keys.PrivateKey]); err != nil {
			s.certificateErr = err
		} else {
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
		// Perhaps only the CA's key was lost. What it signed is served until it is replaced, so it is still trusted.
		s.previous = append(s.previous, unexpired(s.data[policy.Keys.Certificate], s.now)...)
	}
}

// unexpired returns the CA certificates of a PEM bundle that have not expired, each of them once.
func unexpired(bundle []byte, now time.Time) []*x509.Certificate {
	const limit = 8 // far more than renewals can leave behind
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

// Data returns the content of the Secret. The caller must not change it.
func (s *State) Data() map[string][]byte { return s.data }

// Names returns the names that the certificate is valid for, sorted.
func (s *State) Names() []string {
	return sortedNames(certs.SANs{DNSNames: s.Certificate.Leaf.DNSNames, IPAddresses: s.Certificate.Leaf.IPAddresses})
}

// NotAfter returns when the certificate ends, or where there is none, the CA.
func (s *State) NotAfter() time.Time {
	if s.Certificate != nil {
		return s.Certificate.Leaf.NotAfter
	}
	return s.CA.Certificate().NotAfter
}

// Bundle returns all CA certificates that are to be trusted, as PEM: the CA in use, the next one, the previous ones.
func (s *State) Bundle() []byte {
	var authorities []*x509.Certificate
	for _, ca := range []*certs.CA{s.CA, s.next} {
		if ca != nil {
			authorities = append(authorities, ca.Certificate())
		}
	}
	return encode(append(authorities, s.previous...))
}

// PreviousBundle returns the certificates of the CAs before this one that have not expired, as PEM.
func (s *State) PreviousBundle() []byte { return encode(s.previous) }

// Follows reports whether ca was in use before the CA of s.
func (s *State) Follows(ca *certs.CA) bool {
	return slices.ContainsFunc(s.previous, ca.Certificate().Equal)
}

// SameCA reports whether other, which may be nil, holds the same CA.
func (s *State) SameCA(other *State) bool {
	return s.CA != nil && other != nil && other.CA != nil && s.CA.Certificate().Equal(other.CA.Certificate())
}

// SignedByCA reports whether the CA issued the certificate, whatever its names and dates are.
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

// verify returns why clients that trust the CA would refuse the certificate. When our clock is so late that the CA
// itself is not valid yet, the CA's first moment counts instead: a CA that clients know is not given up for that.
func (s *State) verify() error {
	roots := x509.NewCertPool()
	roots.AddCert(s.CA.Certificate())
	at := s.now
	if begin := s.CA.Certificate().NotBefore; at.Before(begin) {
		at = begin
	}
	if _, err := s.Certificate.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return fmt.Errorf("clients that trust the CA refuse the certificate: %w", err)
	}
	return nil
}

// RenewAt returns when two thirds of a certificate's life are over.
func RenewAt(cert *x509.Certificate) time.Time {
	return cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) / 3 * 2)
}

// Due returns the next moment at which the passing of time alone gives a reason to look at the Secret again. It is
// for a State without a Verdict.
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
	var due time.Time
	for _, moment := range moments {
		if moment.After(s.now) && (due.IsZero() || moment.Before(due)) {
			due = moment
		}
	}
	return due
}

// announcedUntil is when the next CA has been trusted for long enough to be used.
func (s *State) announcedUntil() time.Time {
	return s.next.Certificate().NotBefore.Add(certs.Backdate + s.policy.CA.Succession.Announcement)
}
