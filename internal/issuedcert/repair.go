package issuedcert

import (
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Repair returns the state that resolves v. It is one step: the result may have a Verdict on another part. seen is the
// last State without a Verdict, or nil.
//
// Repair keeps the CA if possible. It replaces a damaged CA by the one in seen, if that is still usable. It makes a new
// CA only if neither is usable, or the CA cannot issue the certificate of the policy.
func (s *State) Repair(v *Verdict, seen *State) (*State, error) {
	switch {
	case v.Part == PartCertificate:
		next, err := s.issue(parts{ca: s.CA, next: s.next, previous: s.previous})
		if err == nil {
			err = next.certificateProblem()
		}
		switch {
		case err == nil:
			return next, nil
		case s.policy.CA == nil:
			return nil, err
		}
		return s.replaceCA(s)
	case v.Reason == Announced:
		return s.switchToNext()
	case v.Reason == Expiring && s.policy.CA.announced():
		return s.announce()
	case v.Reason == Expiring:
		return s.replaceCA(s)
	case s.next != nil:
		return s.switchToNext()
	}
	if restored := s.Restore(v, seen); restored != nil {
		return restored, nil
	}
	if v.Reason == Damaged && seen != nil {
		return s.replaceCA(seen) // certificates of the observed CA are still accepted
	}
	return s.replaceCA(s)
}

// Restore returns the state with the CA in seen, or nil if that is unusable or the Secret was deleted to request a new
// CA. It never makes a new CA.
func (s *State) Restore(v *Verdict, seen *State) *State {
	lost := v.Part == PartCA &&
		(v.Reason == Damaged || v.Reason == Expired || v.Reason == Missing && s.policy.CA.RestoreDeleted)
	if !lost || seen == nil || seen.CA == nil {
		return nil
	}
	restored, err := s.issue(parts{ca: seen.CA, next: seen.next, previous: seen.previous})
	if err != nil || restored.Verdict() != nil {
		return nil
	}
	return restored
}

// replaceCA makes a new CA, which signs at once. The previous CAs stay trusted if the policy has a Succession.
func (s *State) replaceCA(before *State) (*State, error) {
	ca, err := s.newCA()
	if err != nil {
		return nil, err
	}
	next, err := s.issue(parts{ca: ca, previous: before.retired(s.now)})
	if err == nil {
		err = next.certificateProblem()
	}
	if err != nil {
		return nil, err
	}
	return next, nil
}

func (s *State) switchToNext() (*State, error) {
	return s.issue(parts{ca: s.next, previous: s.retired(s.now)})
}

// announce adds the next CA, which does not sign yet.
func (s *State) announce() (*State, error) {
	next, err := s.newCA()
	if err != nil {
		return nil, err
	}
	unchanged := map[string][]byte{}
	if s.policy.Certificate != nil {
		keys := s.policy.Certificate.Keys
		unchanged[keys.Certificate], unchanged[keys.PrivateKey] = s.data[keys.Certificate], s.data[keys.PrivateKey]
	}
	return s.with(parts{ca: s.CA, next: next, previous: s.previous}, unchanged)
}

func (s *State) newCA() (*certs.CA, error) {
	ca, err := certs.NewCA(s.policy.CA.CommonName, s.now, s.policy.CA.Life)
	if err != nil {
		return nil, fmt.Errorf("making the CA: %w", err)
	}
	return ca, nil
}

// retired returns the CA certificates that stay trusted after the CA is replaced, the newest first.
func (s *State) retired(now time.Time) []*x509.Certificate {
	all := slices.Clone(s.previous)
	if s.CA != nil {
		all = slices.Insert(all, 0, s.CA.Certificate())
	}
	return slices.DeleteFunc(all, func(ca *x509.Certificate) bool { return !now.Before(ca.NotAfter) })
}

// parts are the CAs of a Secret.
type parts struct {
	ca, next *certs.CA
	previous []*x509.Certificate
}

// issue returns the state with these CAs, and a new certificate if the policy has one.
func (s *State) issue(p parts) (*State, error) {
	issued := map[string][]byte{}
	if policy := s.policy.Certificate; policy != nil {
		pair, err := p.ca.IssueServing(policy.Names, s.now, policy.Life)
		if err != nil {
			return nil, fmt.Errorf("issuing the %s: %w", s.policy.Name, err)
		}
		issued[policy.Keys.Certificate], issued[policy.Keys.PrivateKey] = pair.CertPEM, pair.KeyPEM
	}
	return s.with(p, issued)
}

// with returns the state of a Secret with these CAs and this certificate.
func (s *State) with(p parts, certificate map[string][]byte) (*State, error) {
	data := maps.Clone(certificate)
	if policy := s.policy.CA; policy != nil {
		if err := putCA(data, policy.Keys, p.ca); err != nil {
			return nil, err
		}
		if p.next != nil {
			if err := putCA(data, policy.Succession.Next, p.next); err != nil {
				return nil, err
			}
		}
		if bundle := encode(p.previous); policy.Succession != nil && len(bundle) > 0 {
			data[policy.Succession.Previous] = bundle
		}
	}
	return inspect(s.policy, p.ca, data, true, s.now), nil
}

func putCA(data map[string][]byte, keys Keys, ca *certs.CA) error {
	key, err := ca.KeyPEM()
	if err != nil {
		return fmt.Errorf("encoding the CA's key: %w", err)
	}
	data[keys.Certificate], data[keys.PrivateKey] = ca.CertPEM(), key
	return nil
}

// certificateProblem returns the error of the certificate just issued, if any.
func (s *State) certificateProblem() error {
	if v := s.Verdict(); v != nil && v.Part == PartCertificate {
		return errors.New("issuing the " + s.policy.Name + ": " + v.Message)
	}
	return nil
}
