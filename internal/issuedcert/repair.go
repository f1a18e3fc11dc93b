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

// Repair returns what the Secret is to hold instead, for the reason that v gives. It is one step: the result may
// have a verdict of its own about another part. seen is what the Secret held when there was last nothing wrong with
// it, or nil.
//
// The CA stays whenever it can. A damaged CA is replaced by the one that was seen, if that is still good. A new CA
// is made only when neither can be used, or when the one that is there cannot issue the certificate that the policy
// asks for.
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
		return s.replaceCA(seen) // what it signed is still accepted
	}
	return s.replaceCA(s)
}

// Restore returns the Secret with the CA that was seen in it before, or nil if that CA cannot be used any more, or
// if the Secret was deleted to get rid of it. It never makes a new CA.
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

// replaceCA makes a new CA, which signs at once. Certificates of the previous CAs are still accepted, if the policy
// has a key of the Secret for these CAs.
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

// announce adds the next CA. Nothing is signed by it yet.
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

// retired returns the certificates that are still to be trusted when the CA is replaced, the newest first.
func (s *State) retired(now time.Time) []*x509.Certificate {
	all := slices.Clone(s.previous)
	if s.CA != nil {
		all = slices.Insert(all, 0, s.CA.Certificate())
	}
	return slices.DeleteFunc(all, func(ca *x509.Certificate) bool { return !now.Before(ca.NotAfter) })
}

// parts are the CAs that a Secret is to hold.
type parts struct {
	ca, next *certs.CA
	previous []*x509.Certificate
}

// issue returns the state with these CAs, and with a new certificate if the policy has one.
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

// certificateProblem returns what is wrong with a certificate that was just issued.
func (s *State) certificateProblem() error {
	if v := s.Verdict(); v != nil && v.Part == PartCertificate {
		return errors.New("issuing the " + s.policy.Name + ": " + v.Message)
	}
	return nil
}
