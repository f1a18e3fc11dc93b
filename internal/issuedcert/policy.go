// Package issuedcert keeps the certificates that the agent issues itself: a CA, a certificate, or both, in a Secret.
//
// A Policy describes one such Secret: its keys, names and lifetimes. Inspect reads the Secret. State.Verdict is the
// first of an ordered list of checks that finds a reason to change the Secret. State.Repair returns the content that
// the Secret is to have instead, and Write stores it, unless the Secret was changed since it was read. Everything but
// Write is a pure function.
//
// A CA that clients have in their configuration must not be lost. So Repair prefers a CA that was seen before over a
// new one. Where a CA is renewed, a Succession says how those who trust it learn of the next one.
package issuedcert

import (
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Policy describes what a Secret is to hold. At least one of CA and Certificate is set.
type Policy struct {
	// Name is what messages call the content of the Secret, such as "serving certificate".
	Name        string
	CA          *CAPolicy
	Certificate *CertificatePolicy
}

// Keys are the keys of a Secret under which a certificate and its private key are stored, both as PEM.
type Keys struct {
	Certificate string
	PrivateKey  string
}

// CAPolicy describes the CA in a Secret.
type CAPolicy struct {
	CommonName string
	Life       time.Duration
	Keys       Keys
	// RestoreDeleted makes Repair put a CA that was seen before into a Secret that was deleted. Without it, deleting the
	// Secret is the way to ask for a new CA.
	RestoreDeleted bool
	// Succession is nil for a CA that is used until it expires. Otherwise the CA is renewed after two thirds of its life.
	Succession *Succession
}

// Succession says how one CA follows another.
type Succession struct {
	// Previous is the key of the Secret under which the earlier CA certificates are stored, until they expire. What they
	// signed is still accepted.
	Previous string
	// Announcement is how long the next CA is trusted before it signs anything. Until then the next CA is stored
	// under the keys in Next. With a zero Announcement, a new CA signs at once.
	Announcement time.Duration
	Next         Keys
}

// announced reports whether the next CA is trusted for a while before it is used.
func (c *CAPolicy) announced() bool { return c.Succession != nil && c.Succession.Announcement > 0 }

// margin is how long before its end a CA is replaced at once, because there is no time left to announce the next
// one.
func (c *CAPolicy) margin() time.Duration {
	if c.announced() {
		return 3 * c.Succession.Announcement
	}
	return 0
}

// CertificatePolicy describes the serving certificate in a Secret.
type CertificatePolicy struct {
	Names certs.SANs
	// MoreNames accepts a certificate that is valid for other names besides Names.
	MoreNames bool
	Life      time.Duration
	Keys      Keys
}
