package result

import "time"

// KubeconfigList is the content of kubeconfigs.
type KubeconfigList struct {
	Head
	At       time.Time           `json:"at"` // the time for which the certificates were checked
	Contexts []KubeconfigContext `json:"contexts"`
}

// KubeconfigContext is a context of a kubeconfig, or a file that cannot be read.
type KubeconfigContext struct {
	Path     string `json:"path"`
	Context  string `json:"context,omitempty"` // empty if the file has no contexts or cannot be read
	Current  bool   `json:"current,omitempty"`
	Cluster  string `json:"cluster,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	User     string `json:"user,omitempty"`
	// Login describes the login for people, such as "pinniped static, $TOKEN".
	Login string `json:"login,omitempty"`
	// CABundle is the CA bundle that the endpoint is verified with; absent if unknown, or if verification is off.
	CABundle CABundle `json:"caBundle,omitzero"`
	Verdict  Verdict  `json:"verdict"`
	Problems []string `json:"problems,omitempty"` // the reasons for the verdict, most important first
	Fix      string   `json:"fix,omitempty"`      // a command that fixes the problem, if there is one
}

// Verdict is the condition of a context.
type Verdict string

// The verdicts, worst first.
const (
	VerdictUnreadable  Verdict = "unreadable"  // the file, or a file that it refers to
	VerdictIncomplete  Verdict = "incomplete"  // a cluster or a user is missing
	VerdictOutdated    Verdict = "outdated"    // its CA bundle does not verify the endpoint's certificate
	VerdictExpired     Verdict = "expired"     // a CA or a client certificate
	VerdictUnreachable Verdict = "unreachable" // the endpoint does not respond
	VerdictNoPlugin    Verdict = "noPlugin"    // the credential plugin is not installed here
	VerdictExpiring    Verdict = "expiring"
	VerdictInsecure    Verdict = "insecure" // verification is off
	VerdictNotKnown    Verdict = "notKnown" // the credential plugin's trust is unknown
	VerdictOK          Verdict = "ok"
)

// Enum lists the verdicts.
func (Verdict) Enum() []string {
	return enum(VerdictUnreadable, VerdictIncomplete, VerdictOutdated, VerdictExpired, VerdictUnreachable,
		VerdictNoPlugin, VerdictExpiring, VerdictInsecure, VerdictNotKnown, VerdictOK)
}
