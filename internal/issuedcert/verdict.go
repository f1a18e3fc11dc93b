// Package issuedcert manages the certificates that the agent issues itself: a CA, a certificate, or both, in a Secret.
//
// A Policy describes such a Secret: its keys, names and lifetimes. Inspect reads it. State.Verdict runs an ordered list
// of checks and returns the first reason to change the Secret. State.Repair returns the new content, and Write stores
// it, unless the Secret has changed since it was read. Everything except Write is a pure function.
//
// A CA that clients trust must not be lost, so Repair prefers a previously observed CA to a new one. A Succession says
// how a CA is renewed.
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
		return fmt.Sprintf("the CA expires at %s: too little time is left to publish the next CA first", timeText(end))
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
	return "the next CA has been published long enough to be used"
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

// Policy describes the content of a Secret. At least one of CA and Certificate is set.
type Policy struct {
	// Name is the name of the content in messages, such as "serving certificate".
	Name        string
	CA          *CAPolicy
	Certificate *CertificatePolicy
}

// Keys are the keys of a Secret for a certificate and its private key, both PEM.
type Keys struct {
	Certificate string
	PrivateKey  string
}

// CAPolicy describes the CA in a Secret.
type CAPolicy struct {
	CommonName string
	Life       time.Duration
	Keys       Keys
	// RestoreDeleted makes Repair restore the previously observed CA into a Secret that was deleted. Without it,
	// deleting the Secret requests a new CA.
	RestoreDeleted bool
	// Succession is nil for a CA that is used until it expires. Otherwise the CA is renewed after two thirds of its
	// life.
	Succession *Succession
}

// Succession says how a CA is renewed.
type Succession struct {
	// Previous is the key of the Secret for previous CA certificates, which stay trusted until they expire.
	Previous string
	// Announcement is how long the next CA is trusted before it signs anything. During that time it is stored under
	// Next. If Announcement is zero, a new CA signs at once.
	Announcement time.Duration
	Next         Keys
}

// announced reports whether the next CA is trusted for some time before it signs.
func (c *CAPolicy) announced() bool { return c.Succession != nil && c.Succession.Announcement > 0 }

// margin is how long before it expires a CA is replaced at once, because there is no time to announce the next one.
func (c *CAPolicy) margin() time.Duration {
	if c.announced() {
		return 3 * c.Succession.Announcement
	}
	return 0
}

// CertificatePolicy describes the serving certificate in a Secret.
type CertificatePolicy struct {
	Names certs.SANs
	// MoreNames accepts a certificate that is also valid for names other than Names.
	MoreNames bool
	Life      time.Duration
	Keys      Keys
}
