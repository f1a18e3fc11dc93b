package result

import "github.com/pinniped-toolkit/pinniped/internal/delegation"

// DelegationExplanation says whether the agent may use a Secret of another namespace, and why.
type DelegationExplanation struct {
	Head
	Secret ObjectRef `json:"secret"`
	// Agent is the agent's service account.
	Agent ObjectRef `json:"serviceAccount"`
	// Permitted says whether the agent may use the Secret.
	Permitted Answer `json:"permitted"`
	// Reason is the reason in one word; absent if unknown.
	Reason delegation.Outcome `json:"reason,omitempty"`
	Checks []DelegationCheck  `json:"checks"`
	// NearMisses are delegations that are probably meant to permit it, but do not.
	NearMisses []delegation.NearMiss `json:"nearMisses,omitempty"`
	// Manifest is the YAML that the Secret's owner must apply; absent if nothing is missing.
	Manifest string `json:"manifest,omitempty"`
}

// DelegationCheck is a condition and whether it is met.
type DelegationCheck struct {
	// Name is "delegation", "rbac" or "secret".
	Name    string `json:"check"`
	Answer  Answer `json:"answer"`
	Message string `json:"message"`
}
