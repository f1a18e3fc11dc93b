package result

import "github.com/pinniped-toolkit/pinniped/internal/delegation"

// DelegationExplanation says whether the agent may use a Secret of another namespace, and why.
type DelegationExplanation struct {
	Head
	Secret ObjectRef `json:"secret"`
	Agent  ObjectRef `json:"serviceAccount"` // the agent's service account
	// Permitted says whether the agent may use the Secret.
	Permitted Answer             `json:"permitted"`
	Reason    delegation.Outcome `json:"reason,omitempty"` // the reason in one word; absent if unknown
	Checks    []DelegationCheck  `json:"checks"`
	// NearMisses are delegations that are probably meant to permit it, but do not.
	NearMisses []delegation.NearMiss `json:"nearMisses,omitempty"`
	// Manifest is the YAML that the Secret's owner must apply; absent if nothing is missing.
	Manifest string `json:"manifest,omitempty"`
}

// DelegationCheck is a condition and whether it is met.
type DelegationCheck struct {
	Name    string `json:"check"` // "delegation", "rbac" or "secret"
	Answer  Answer `json:"answer"`
	Message string `json:"message"`
}
