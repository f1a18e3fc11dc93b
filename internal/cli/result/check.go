package result

import (
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Check is the result of certificate checks.
type Check struct {
	Head
	// Source is "cluster", "file" or "endpoint".
	Source           Source `json:"source"`
	CredentialIssuer string `json:"credentialIssuer,omitempty"`
	// At is the time for which the certificates were checked.
	At time.Time `json:"at"`
	// OK is true if no finding refuses a certificate or, with --fail-on warning, is a warning.
	OK bool `json:"ok"`
	// CABundle is the CA bundle that clients verify with.
	CABundle CABundle             `json:"caBundle"`
	Subjects []CheckedCertificate `json:"certificates"`
	// NotChecked lists what could not be checked, with the reasons.
	NotChecked []string `json:"notChecked,omitempty"`
}

// CheckedCertificate is a certificate that was checked.
type CheckedCertificate struct {
	// Name is the location: a Secret, a file, or the addresses that present it.
	Name        string       `json:"name"`
	Certificate certs.Report `json:"certificate"`
	// NotMade lists the checks that were not made, with the reasons.
	NotMade []CheckNotMade `json:"notMade,omitempty"`
	// Timeline lists what will fail if nothing is renewed, with --timeline.
	Timeline []certs.Event `json:"timeline,omitempty"`
	// BreaksAt is when the first failure happens, with --timeline; it is At if something is already broken.
	BreaksAt *time.Time `json:"breaksAt,omitempty"`
}

// CheckNotMade is a check that was not made.
type CheckNotMade struct {
	Code   certs.Code `json:"code"`
	Reason string     `json:"reason"`
}
