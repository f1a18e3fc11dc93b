package result

import "time"

// KubeconfigList is what there is in kubeconfigs.
type KubeconfigList struct {
	Head
	// At is the time for which the certificates were judged.
	At       time.Time           `json:"at"`
	Contexts []KubeconfigContext `json:"contexts"`
}

// KubeconfigContext is one context of a kubeconfig, or a file that cannot be read.
type KubeconfigContext struct {
	Path string `json:"path"`
	// Context is empty for a file without contexts, and for one that cannot be read.
	Context  string `json:"context,omitempty"`
	Current  bool   `json:"current,omitempty"`
	Cluster  string `json:"cluster,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	User     string `json:"user,omitempty"`
	// Login says who logs in and how, for people: "pinniped static, $TOKEN" for example.
	Login string `json:"login,omitempty"`
	// CABundle is what the endpoint is verified with. It is absent when it is not known, or when nothing is verified.
	CABundle CABundle `json:"caBundle,omitzero"`
	Verdict  Verdict  `json:"verdict"`
	// Problems are the reasons for the verdict, the most important first.
	Problems []string `json:"problems,omitempty"`
	// Fix is a command that fixes it, if there is one.
	Fix string `json:"fix,omitempty"`
}

// Verdict is the judgement on a context of a kubeconfig.
type Verdict string

// The verdicts, the worst first.
const (
	VerdictUnreadable  Verdict = "unreadable"  // the file, or what it refers to
	VerdictIncomplete  Verdict = "incomplete"  // a cluster or a user is missing
	VerdictOutdated    Verdict = "outdated"    // its CA bundle does not verify what the endpoint presents
	VerdictExpired     Verdict = "expired"     // a CA, or a client certificate
	VerdictUnreachable Verdict = "unreachable" // the endpoint does not answer
	VerdictNoPlugin    Verdict = "noPlugin"    // the program that logs in is not on this computer
	VerdictExpiring    Verdict = "expiring"
	VerdictInsecure    Verdict = "insecure" // nothing is verified
	VerdictNotKnown    Verdict = "notKnown" // what the program that logs in trusts
	VerdictOK          Verdict = "ok"
)

// Enum lists the verdicts.
func (Verdict) Enum() []string {
	return []string{
		string(VerdictUnreadable), string(VerdictIncomplete), string(VerdictOutdated), string(VerdictExpired),
		string(VerdictUnreachable), string(VerdictNoPlugin), string(VerdictExpiring), string(VerdictInsecure),
		string(VerdictNotKnown), string(VerdictOK),
	}
}
