package delegation

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// NearMissKind is a kind of mistake in a delegation.
type NearMissKind string

// The values of NearMissKind.
const (
	MissBeingDeleted   NearMissKind = "BeingDeleted"
	MissMalformed      NearMissKind = "Malformed"
	MissNamespace      NearMissKind = "NamespaceNotListed"
	MissNamespaceCase  NearMissKind = "NamespaceMisspelt"
	MissAsteriskMixed  NearMissKind = "AsteriskNextToOthers"
	MissPattern        NearMissKind = "Pattern"
	MissSecretMisspelt NearMissKind = "SecretMisspelt"
	MissOtherSecret    NearMissKind = "OtherSecret"
	MissOtherNamespace NearMissKind = "DelegationElsewhere"
)

// NearMiss is a delegation that does not permit what was requested, and why.
type NearMiss struct {
	Kind       NearMissKind `json:"kind"`
	Delegation string       `json:"delegation"` // NAMESPACE/NAME
	Message    string       `json:"message"`
}

func nearMisses(d Delegation, secret types.NamespacedName, target string) []NearMiss {
	var misses []NearMiss
	add := func(kind NearMissKind, format string, args ...any) {
		misses = append(misses, NearMiss{kind, d.Namespace + "/" + d.Name, fmt.Sprintf(format, args...)})
	}
	here := d.Namespace == secret.Namespace
	if here && d.Problem != "" {
		add(MissMalformed, "%s", d.Problem)
	}
	for _, entry := range d.Entries {
		named := entry.SecretName == secret.Name
		switch {
		case d.permits(entry, secret, target):
		case !here:
			if (named || entry.SecretName == secret.String()) && entry.reaches(target) {
				add(
					MissOtherNamespace,
					"it delegates Secret %q in its own namespace, %q; create the delegation in the Secret's namespace, %q",
					secret.Name,
					d.Namespace,
					secret.Namespace,
				)
			}
		case entry.Problem != "":
			add(MissMalformed, "%s", entry.Problem)
		case d.Deleting && named && entry.reaches(target):
			add(MissBeingDeleted, "it is being deleted, and no longer permits the use of the Secret")
		case named:
			kind, why := missedTarget(entry.Targets, target)
			add(kind, "%s", why)
		case misspelt(entry.SecretName, secret):
			add(MissSecretMisspelt, "it names the Secret %.100q, not exactly %q", entry.SecretName, secret.Name)
		case entry.reaches(target):
			add(MissOtherSecret, "it delegates another Secret, %.100q", entry.SecretName)
		}
	}
	return misses
}

// missedTarget says why the targets of an entry for the right Secret do not include the target.
func missedTarget(targets []string, target string) (NearMissKind, string) {
	near := func(written string) bool { return strings.EqualFold(strings.TrimSpace(written), target) }
	switch i := slices.IndexFunc(targets, near); {
	case i >= 0:
		return MissNamespaceCase, fmt.Sprintf("targetNamespaces has %q, not exactly %q", targets[i], target)
	case slices.Contains(targets, everyone):
		return MissAsteriskMixed, fmt.Sprintf(
			`targetNamespaces has "*" next to other entries, where it is ignored: leave only "*", or add %q`, target)
	case len(targets) == 0:
		return MissNamespace, fmt.Sprintf("targetNamespaces is empty: add %q", target)
	}
	if i := slices.IndexFunc(targets, func(written string) bool { return strings.Contains(written, everyone) }); i >= 0 {
		return MissPattern, fmt.Sprintf("targetNamespaces has %.100q, but patterns are ignored: add %q", targets[i], target)
	}
	return MissNamespace, fmt.Sprintf("targetNamespaces lacks %q: add it", target)
}

// misspelt reports whether the name resembles the Secret's name.
func misspelt(written string, secret types.NamespacedName) bool {
	written = strings.TrimSpace(written)
	return strings.EqualFold(written, secret.Name) || strings.EqualFold(written, secret.String()) || written == everyone
}
