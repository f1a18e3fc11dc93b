package result

import (
	"maps"
	"slices"
)

// Kind is the type of an object: the name of its Go type.
type Kind string

// KindFailure is the kind of a Failure.
const KindFailure Kind = "Failure"

// Kinds returns an empty object of each kind.
func Kinds() map[Kind]Object {
	return map[Kind]Object{
		"Change":                &Change{}, // ip-tls set, unset and undo
		"Check":                 &Check{},
		"CodeExplanation":       &CodeExplanation{},       // explain CODE
		"CodeExplanationList":   &CodeExplanationList{},   // explain
		"DelegationExplanation": &DelegationExplanation{}, // explain NAMESPACE/NAME
		KindFailure:             &Failure{},
		"History":               &History{},
		"KubeconfigList":        &KubeconfigList{},
		"KubeconfigRotation":    &KubeconfigRotation{},
		"Logout":                &Logout{},
		"Migration":             &Migration{},
		"Status":                &Status{},
		"Version":               &Version{},
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
