package result

import "github.com/pinniped-toolkit/pinniped/internal/delegation"

// DelegationExplanation says whether the agent may use a Secret of another namespace, and why.
type DelegationExplanation struct {
	Head
	Secret ObjectRef `json:"secret"`
	// Agent is the agent's service account.
	Agent ObjectRef `json:"serviceAccount"`
	// Permitted says whether that agent may use that Secret.
	Permitted Answer `json:"permitted"`
	// Reason is the reason in one word; absent when it is not known.
	Reason delegation.Outcome `json:"reason,omitempty"`
	Checks []DelegationCheck  `json:"checks"`
	// NearMisses are delegations that look as if they were meant to permit it.
	NearMisses []delegation.NearMiss `json:"nearMisses,omitempty"`
	// Manifest is the YAML to ask the owner for; absent when nothing is missing.
	Manifest string `json:"manifest,omitempty"`
}

// DelegationCheck is one condition, and whether it holds.
type DelegationCheck struct {
	// Name is "delegation", "rbac" or "secret".
	Name    string `json:"check"`
	Answer  Answer `json:"answer"`
	Message string `json:"message"`
}
