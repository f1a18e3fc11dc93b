package issuedcert

import (
	"fmt"
	"slices"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Reason is why a Secret has to change.
type Reason string

// The values of Reason.
const (
	Missing     Reason = "Missing"     // the Secret does not exist
	Damaged     Reason = "Damaged"     // the certificate or key cannot be parsed, or they do not match
	Expired     Reason = "Expired"     // it has expired, or expires too soon to announce the next CA
	NotYetValid Reason = "NotYetValid" // its validity starts in the future
	NotVerified Reason = "NotVerified" // clients that trust the CA reject the certificate
	SANMismatch Reason = "SANMismatch" // it lacks a name or has another one
	Expiring    Reason = "Expiring"    // two thirds of its lifetime have passed
	Announced   Reason = "Announced"   // the announcement of the next CA has ended
)

// Part is the part of a Secret that a Verdict concerns.
type Part string

// The values of Part.
const (
	PartCA          Part = "CA"
	PartCertificate Part = "certificate"
)

// Verdict says why the Secret has to change.
type Verdict struct {
	Part    Part
	Reason  Reason
	Message string // for the log
}

// Only reports whether v is nil or has this reason.
func (v *Verdict) Only(reason Reason) bool { return v == nil || v.Reason == reason }

// check tests one reason for one part. found returns a message, or "" if the reason does not apply.
type check struct {
	part   Part
	reason Reason
	found  func(*State) string
}

// checks returns all checks, the most urgent first. Each relies on those before it: checks after Damaged can assume
// that the part is readable.
func checks() []check {
	return []check{
		{PartCA, Missing, missing},
		{PartCA, Damaged, caDamaged},
		{PartCA, Expired, caExpired},
		{PartCA, NotYetValid, caNotYetValid},
		{PartCertificate, Missing, missing},
		{PartCertificate, Damaged, certificateDamaged},
		{PartCertificate, Expired, certificateExpired},
		{PartCertificate, NotVerified, certificateNotVerified},
		{PartCertificate, SANMismatch, namesDiffer},
		{PartCertificate, Expiring, certificateExpiring},
		{PartCA, Announced, nextAnnounced},
		{PartCA, Expiring, caExpiring},
	}
}

// Verdict returns the most urgent reason to change the Secret, or nil if there is none.
func (s *State) Verdict() *Verdict {
	for _, check := range checks() {
		if check.part == PartCA && s.policy.CA == nil || check.part == PartCertificate && s.policy.Certificate == nil {
			continue
		}
		if message := check.found(s); message != "" {
			return &Verdict{Part: check.part, Reason: check.reason, Message: message}
		}
	}
	return nil
}

func missing(s *State) string {
	if s.exists {
		return ""
	}
	return fmt.Sprintf("there is no %s yet", s.policy.Name)
}

func caDamaged(s *State) string {
	if s.caErr == nil {
		return ""
	}
	return "the CA cannot be used: " + s.caErr.Error()
}

func caExpired(s *State) string {
	end := s.CA.Certificate().NotAfter
	switch {
	case !s.now.Before(end):
		return "the CA expired at " + timeText(end)
	case !s.now.Before(end.Add(-s.policy.CA.margin())):
		return fmt.Sprintf("the CA expires at %s, too soon to publish the next one", timeText(end))
	}
	return ""
}

// caNotYetValid finds a CA that was issued with a clock that is ahead, unless the agent's clock is behind. With a
// Succession a new CA is harmless, because previous ones stay trusted. Without one, clients trust this CA, so it is
// replaced only if the API server's clock agrees: it stored the CA before the CA was valid.
func caNotYetValid(s *State) string {
	begin := s.CA.Certificate().NotBefore
	if !s.now.Before(begin) || s.policy.CA.Succession == nil && !s.written.Before(begin) {
		return ""
	}
	return "the CA is not valid before " + timeText(begin)
}

func certificateDamaged(s *State) string {
	if s.certificateErr == nil {
		return ""
	}
	return fmt.Sprintf("the %s cannot be used: %v", s.policy.Name, s.certificateErr)
}

func certificateExpired(s *State) string {
	end := s.Certificate.Leaf.NotAfter
	if s.now.Before(end) {
		return ""
	}
	return fmt.Sprintf("the %s expired at %s", s.policy.Name, timeText(end))
}

func certificateNotVerified(s *State) string {
	if err := s.verify(); err != nil {
		return err.Error()
	}
	return ""
}

func namesDiffer(s *State) string {
	have, wanted := s.Names(), sortedNames(s.policy.Certificate.Names)
	same := slices.Equal(have, wanted)
	if s.policy.Certificate.MoreNames {
		same = !slices.ContainsFunc(wanted, func(name string) bool { return s.Certificate.Leaf.VerifyHostname(name) != nil })
	}
	if same {
		return ""
	}
	return fmt.Sprintf("the %s is valid for %q, not for %q", s.policy.Name, have, wanted)
}

// certificateExpiring ignores a certificate that ends with its CA: a new one could not live longer.
func certificateExpiring(s *State) string {
	leaf := s.Certificate.Leaf
	if s.now.Before(RenewAt(leaf)) || !leaf.NotAfter.Before(s.CA.Certificate().NotAfter) {
		return ""
	}
	return fmt.Sprintf("two thirds of the lifetime of the %s have passed; it expires at %s",
		s.policy.Name, timeText(leaf.NotAfter))
}

func nextAnnounced(s *State) string {
	if s.next == nil || s.now.Before(s.announcedUntil()) {
		return ""
	}
	return "the next CA has been trusted long enough to be used"
}

func caExpiring(s *State) string {
	cert := s.CA.Certificate()
	if s.policy.CA.Succession == nil || s.next != nil || s.now.Before(RenewAt(cert)) {
		return ""
	}
	return "two thirds of the CA's lifetime have passed; it expires at " + timeText(cert.NotAfter)
}

func sortedNames(names certs.SANs) []string {
	all := slices.Clone(names.DNSNames)
	for _, ip := range names.IPAddresses {
		all = append(all, ip.String())
	}
	slices.Sort(all)
	return all
}

func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339) }
