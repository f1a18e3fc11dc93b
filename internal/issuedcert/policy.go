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
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

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
