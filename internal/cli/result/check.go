package result

import (
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Check is what was found out about certificates.
type Check struct {
	Head
	// Source is "cluster", "file" or "endpoint".
	Source           Source `json:"source"`
	CredentialIssuer string `json:"credentialIssuer,omitempty"`
	// At is the time for which the certificates were checked.
	At time.Time `json:"at"`
	// OK is true when no finding refuses a certificate or, with --fail-on warning, warns of it.
	OK bool `json:"ok"`
	// CABundle is what clients verify with.
	CABundle CABundle             `json:"caBundle"`
	Subjects []CheckedCertificate `json:"certificates"`
	// NotChecked names what could not be checked, each with the reason.
	NotChecked []string `json:"notChecked,omitempty"`
}

// CheckedCertificate is one certificate that was checked.
type CheckedCertificate struct {
	// Name says where it is: a Secret, a file, or the addresses that present it.
	Name        string       `json:"name"`
	Certificate certs.Report `json:"certificate"`
	// NotMade names the checks that were not made on it, each with the reason.
	NotMade []CheckNotMade `json:"notMade,omitempty"`
	// Timeline is what will go wrong if nothing is renewed, with --timeline.
	Timeline []certs.Event `json:"timeline,omitempty"`
	// BreaksAt is the first instant at which something is broken, with --timeline; At itself when something is already.
	BreaksAt *time.Time `json:"breaksAt,omitempty"`
}

// CheckNotMade is a check that was not made.
type CheckNotMade struct {
	Code   certs.Code `json:"code"`
	Reason string     `json:"reason"`
}
