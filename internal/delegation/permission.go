package delegation

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Outcome says whether a Secret of another namespace may be used, and if not, why not.
type Outcome string

// The values of Outcome.
const (
	// Permitted means that a delegation permits it and RBAC lets the agent read the Secret.
	Permitted Outcome = "Permitted"
	// NotDelegated means that no delegation permits the use of the Secret.
	NotDelegated Outcome = "NotDelegated"
	// NoDelegations means that the cluster does not serve TLSCertificateDelegations.
	NoDelegations Outcome = "NoDelegations"
	// NotVisible means that the agent lacks permission to list delegations or to create access reviews.
	NotVisible Outcome = "NotVisible"
	// NotReadable means that a delegation permits it, but RBAC does not let the agent read the Secret.
	NotReadable Outcome = "NotReadable"
)

// ReadVerbs are the verbs that RBAC must permit for the Secret, by name, so that the agent can watch it.
func ReadVerbs() []string { return []string{"get", "list", "watch"} }

// Refusal returns the finding for a Secret that may not be used from the agent's namespace, target. It does not reveal
// whether the Secret exists. The outcome must not be Permitted.
func Refusal(outcome Outcome, secret types.NamespacedName, target string) certs.Finding {
	why, hint := "", fmt.Sprintf(
		`have the owner of namespace %q apply what "pinniped explain %s" prints, or run "pinniped ip-tls delegate %s --to %s"`,
		secret.Namespace,
		secret,
		secret,
		target,
	)
	switch outcome {
	case NotDelegated:
		why = fmt.Sprintf("no %s in namespace %q delegates it to namespace %q", Kind, secret.Namespace, target)
	case NoDelegations:
		why = fmt.Sprintf("the cluster has no %ss (%s/%s) that could permit it", Kind, Group, Version)
	case NotVisible:
		why = "the agent cannot check (forbidden) whether its owner permits it"
		hint = fmt.Sprintf(
			"apply the agent's manifests (deploy/concierge) again: its ClusterRole must permit get, list and watch of %s.%s, "+
				"and create of selfsubjectaccessreviews.authorization.k8s.io", Plural, Group)
	case NotReadable:
		why = "a " + Kind + " permits it, but RBAC does not let the agent's service account get, list and watch that Secret"
	case Permitted:
	}
	finding := certs.NewFinding(certs.SecretNotPermitted,
		fmt.Sprintf("Secret %q cannot be used from namespace %q: %s", secret, target, why))
	finding.Hint = hint
	return finding
}
