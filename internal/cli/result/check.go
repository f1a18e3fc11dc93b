package result

import (
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Check is the result of certificate checks.
type Check struct {
	Head
	Source           Source    `json:"source"` // "cluster", "file" or "endpoint"
	CredentialIssuer string    `json:"credentialIssuer,omitempty"`
	At               time.Time `json:"at"` // the time for which the certificates were checked
	// OK is true if no finding refuses a certificate or, with --fail-on warning, is a warning.
	OK       bool                 `json:"ok"`
	CABundle CABundle             `json:"caBundle"` // the CA bundle that clients verify with
	Subjects []CheckedCertificate `json:"certificates"`
	// NotChecked lists what could not be checked, with the reasons.
	NotChecked []string `json:"notChecked,omitempty"`
}

// CheckedCertificate is a certificate that was checked.
type CheckedCertificate struct {
	Name        string       `json:"name"` // the location: a Secret, a file, or the addresses that present it
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
