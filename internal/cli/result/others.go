package result

import "github.com/pinniped-toolkit/pinniped/pkg/certs"

// Version describes a build. The fields are those of Kubernetes' own version answer.
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

// CodeExplanation is what is behind a code of the catalogue of checks.
type CodeExplanation struct {
	Head
	certs.Explanation
}

// CodeExplanationList explains all codes, in the order in which they are looked at.
type CodeExplanationList struct {
	Head
	Items []certs.Explanation `json:"items"`
}

// Logout is what was removed and revoked.
type Logout struct {
	Head
	// Credentials is how many credentials of clusters were forgotten.
	Credentials int `json:"credentials"`
	// Sessions are those that were ended.
	Sessions []EndedSession `json:"sessions"`
}

// EndedSession is a session that is forgotten on this computer.
type EndedSession struct {
	Issuer string `json:"issuer"`
	User   string `json:"user,omitempty"`
	// Revocation is what became of its tokens at the issuer.
	Revocation Revocation `json:"revocation"`
	// Problem says why they could not be revoked.
	Problem string `json:"problem,omitempty"`
}

// Revocation is what became of a session's tokens at the issuer.
type Revocation string

// The revocations.
const (
	RevocationDone       Revocation = "revoked"
	RevocationNotOffered Revocation = "notOffered" // the issuer offers none
	RevocationNotNeeded  Revocation = "notNeeded"  // there was no token to revoke
	RevocationFailed     Revocation = "failed"     // a copy of the tokens works until they expire
)

// Enum lists the revocations.
func (Revocation) Enum() []string {
	return []string{
		string(RevocationDone), string(RevocationNotOffered), string(RevocationNotNeeded), string(RevocationFailed),
	}
}
