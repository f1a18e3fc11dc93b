package result

import (
	"maps"
	"slices"
)

// Kind is the type of an object: the name of its Go type.
type Kind string

// KindFailure is the kind of a Failure.
const KindFailure Kind = "Failure"

// Kinds returns an empty object of each kind, which the commands in the comment print.
func Kinds() map[Kind]Object {
	return map[Kind]Object{
		"Change":                &Change{},                // ip-tls set, ip-tls unset, ip-tls undo
		"Check":                 &Check{},                 // ip-tls check
		"CodeExplanation":       &CodeExplanation{},       // explain CODE
		"CodeExplanationList":   &CodeExplanationList{},   // explain
		"DelegationExplanation": &DelegationExplanation{}, // explain NAMESPACE/NAME
		KindFailure:             &Failure{},               // every command that fails before it has another result
		"History":               &History{},               // ip-tls history
		"KubeconfigList":        &KubeconfigList{},        // kubeconfig ls
		"KubeconfigRotation":    &KubeconfigRotation{},    // kubeconfig rotate
		"Logout":                &Logout{},                // logout
		"Migration":             &Migration{},             // migrate check
		"Status":                &Status{},                // ip-tls status
		"Version":               &Version{},               // version
	}
}

// Enum lists the kinds.
func (Kind) Enum() []string { return enum(slices.Sorted(maps.Keys(Kinds()))...) }

// enum returns the values as strings.
func enum[T ~string](values ...T) []string {
	all := make([]string, 0, len(values))
	for _, value := range values {
		all = append(all, string(value))
	}
	return all
}
