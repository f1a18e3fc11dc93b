package result

// Kind is the type of an object.
type Kind string

// The kinds.
const (
	KindChange                Kind = "Change"
	KindCheck                 Kind = "Check"
	KindCodeExplanation       Kind = "CodeExplanation"
	KindCodeExplanationList   Kind = "CodeExplanationList"
	KindDelegationExplanation Kind = "DelegationExplanation"
	KindFailure               Kind = "Failure"
	KindHistory               Kind = "History"
	KindKubeconfigList        Kind = "KubeconfigList"
	KindKubeconfigRotation    Kind = "KubeconfigRotation"
	KindLogout                Kind = "Logout"
	KindMigration             Kind = "Migration"
	KindStatus                Kind = "Status"
	KindVersion               Kind = "Version"
)

// Known is a kind and the commands that print it.
type Known struct {
	Kind Kind
	// Commands are the commands that print it, without "pinniped".
	Commands []string
	Object   Object
}

// Kinds returns all kinds, sorted by name.
func Kinds() []Known {
	return []Known{
		{KindChange, []string{"ip-tls set", "ip-tls unset", "ip-tls undo"}, &Change{}},
		{KindCheck, []string{"ip-tls check"}, &Check{}},
		{KindCodeExplanation, []string{"explain CODE"}, &CodeExplanation{}},
		{KindCodeExplanationList, []string{"explain"}, &CodeExplanationList{}},
		{KindDelegationExplanation, []string{"explain NAMESPACE/NAME"}, &DelegationExplanation{}},
		{KindFailure, []string{"every command that fails before it has another result"}, &Failure{}},
		{KindHistory, []string{"ip-tls history"}, &History{}},
		{KindKubeconfigList, []string{"kubeconfig ls"}, &KubeconfigList{}},
		{KindKubeconfigRotation, []string{"kubeconfig rotate"}, &KubeconfigRotation{}},
		{KindLogout, []string{"logout"}, &Logout{}},
		{KindMigration, []string{"migrate check"}, &Migration{}},
		{KindStatus, []string{"ip-tls status"}, &Status{}},
		{KindVersion, []string{"version"}, &Version{}},
	}
}

// Enum lists the kinds.
func (Kind) Enum() []string {
	var all []string
	for _, known := range Kinds() {
		all = append(all, string(known.Kind))
	}
	return all
}
