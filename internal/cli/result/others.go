package result

import "github.com/pinniped-toolkit/pinniped/pkg/certs"

// Version is the version of a build, with the fields of Kubernetes' version.Info.
type Version struct {
	Head
	Major        string `json:"major"`
	Minor        string `json:"minor"`
	GitVersion   string `json:"gitVersion"`
	GitCommit    string `json:"gitCommit"`
	GitTreeState string `json:"gitTreeState"`
	BuildDate    string `json:"buildDate"`
	GoVersion    string `json:"goVersion"`
	Compiler     string `json:"compiler"`
	Platform     string `json:"platform"`
}

// CodeExplanation explains a code of a certificate check or of the agent.
type CodeExplanation struct {
	Head
	certs.Explanation
}

// CodeExplanationList explains all codes, in the order of the checks.
type CodeExplanationList struct {
	Head
	Items []certs.Explanation `json:"items"`
}

// Logout is the result of a logout.
type Logout struct {
	Head
	Credentials int            `json:"credentials"` // the number of cluster credentials that were removed
	Sessions    []EndedSession `json:"sessions"`    // the sessions that were ended
}

// EndedSession is a session that was removed from this computer.
type EndedSession struct {
	Issuer     string     `json:"issuer"`
	User       string     `json:"user,omitempty"`
	Revocation Revocation `json:"revocation"`        // the result of revoking its tokens at the issuer
	Problem    string     `json:"problem,omitempty"` // why they could not be revoked
}

// Revocation is the result of revoking a session's tokens at the issuer.
type Revocation string

// The results of a revocation.
const (
	RevocationDone       Revocation = "revoked"
	RevocationNotOffered Revocation = "notOffered" // the issuer has no revocation endpoint
	RevocationNotNeeded  Revocation = "notNeeded"  // there was no token
	RevocationFailed     Revocation = "failed"     // a copy of the tokens stays valid until they expire
)

// Enum lists the revocations.
func (Revocation) Enum() []string {
	return enum(RevocationDone, RevocationNotOffered, RevocationNotNeeded, RevocationFailed)
}
