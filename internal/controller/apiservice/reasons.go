package apiservice

import (
	"fmt"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// announcement is how long a new CA stands in the APIServices before it is used: time for every API server to have seen it.
const announcement = 5 * time.Minute

// step is what is to be done about the Secret.
type step int

const (
	newCA      step = iota // new CA, and a certificate of it
	newLeaf                // new certificate of the same CA
	announceCA             // a CA to come
	switchToCA             // the CA to come takes over
)

const (
	maxRequeue = time.Hour // clocks jump
	minRequeue = time.Second
)

// Verdict is why the Secret has to change. The message stands in the log.
type Verdict struct {
	Reason  string
	Message string
	step    step
}

// checks returns the reasons to change something, the most urgent first. The first verdict wins; the others get their turn after it.
func checks() []func(*state) *Verdict {
	return []func(*state) *Verdict{missing, caUnusable, certificateUnusable, nameMismatch, notVerified, expiring, caAnnounced, caExpiring}
}

func missing(s *state) *Verdict {
	if s.exists {
		return nil
	}
	return &Verdict{"Missing", "there is no serving certificate yet", newCA}
}

func caUnusable(s *state) *Verdict {
	var why string
	switch {
	case s.caErr != nil:
		why = s.caErr.Error()
	case !s.now.Add(3 * announcement).Before(s.ca.Certificate().NotAfter): // too late to announce another one
		why = "it ends at " + s.ca.Certificate().NotAfter.UTC().Format(time.RFC3339)
	case s.now.Before(s.ca.Certificate().NotBefore):
		why = "it is not valid before " + s.ca.Certificate().NotBefore.UTC().Format(time.RFC3339)
	default:
		return nil
	}
	if s.next != nil {
		return &Verdict{"CAUnusable", "the CA cannot be used: " + why, switchToCA}
	}
	return &Verdict{"CAUnusable", "the CA cannot be used: " + why, newCA}
}

func certificateUnusable(s *state) *Verdict {
	if s.pairErr == nil {
		return nil
	}
	return &Verdict{"CertificateUnusable", s.pairErr.Error(), newLeaf}
}

func nameMismatch(s *state) *Verdict {
	for _, name := range s.dnsNames {
		if err := s.pair.Leaf.VerifyHostname(name); err != nil {
			return &Verdict{"SANMismatch", fmt.Sprintf("the certificate is not valid for %q", name), newLeaf}
		}
	}
	return nil
}

func notVerified(s *state) *Verdict {
	if err := s.verify(); err != nil {
		return &Verdict{"NotVerified", err.Error(), newLeaf}
	}
	return nil
}

func expiring(s *state) *Verdict {
	if s.now.Before(renewAt(s.pair.Leaf)) {
		return nil
	}
	return &Verdict{"Expiring", "the certificate expires at " + s.pair.Leaf.NotAfter.UTC().Format(time.RFC3339), newLeaf}
}

func caAnnounced(s *state) *Verdict {
	if s.next == nil || s.now.Before(announcedUntil(s.next)) {
		return nil
	}
	return &Verdict{"CAAnnounced", "the next CA has been trusted for long enough to be used", switchToCA}
}

func caExpiring(s *state) *Verdict {
	if s.next != nil || s.now.Before(renewAt(s.ca.Certificate())) {
		return nil
	}
	return &Verdict{"CAExpiring", "the CA expires at " + s.ca.Certificate().NotAfter.UTC().Format(time.RFC3339), announceCA}
}

func announcedUntil(next *certs.CA) time.Time {
	return next.Certificate().NotBefore.Add(certs.Backdate + announcement)
}
