package result

// KubeconfigRotation is what was done with each kubeconfig, and which clusters they lead to.
type KubeconfigRotation struct {
	Head
	DryRun      bool                `json:"dryRun"`
	Summary     RotationSummary     `json:"summary"`
	Clusters    []RotatedCluster    `json:"clusters"`
	Kubeconfigs []RotatedKubeconfig `json:"kubeconfigs"`
}

// RotationSummary counts.
type RotationSummary struct {
	// Clusters are all servers that the kubeconfigs lead to.
	Clusters int `json:"clusters"`
	// ClustersFailed are those without a response, or without a usable one.
	ClustersFailed int `json:"clustersFailed"`
	Kubeconfigs    int `json:"kubeconfigs"`
	Rotated        int `json:"rotated"`
	Current        int `json:"current"`
	Skipped        int `json:"skipped"`
	Unrelated      int `json:"unrelated"`
	Failed         int `json:"failed"`
	// NotDone are kubeconfigs whose turn did not come.
	NotDone int `json:"notDone"`
	// Milliseconds is how long it took.
	Milliseconds int `json:"milliseconds"`
}

// RotatedCluster is one server that kubeconfigs lead to.
type RotatedCluster struct {
	// Server is its URL as a kubeconfig has it, or, of an administrator's kubeconfig that failed, its file and context.
	Server  string         `json:"server"`
	Outcome ClusterOutcome `json:"outcome"`
	// Source says where the CA bundle comes from.
	Source BundleSource `json:"source,omitempty"`
	// CABundle is what the cluster publishes; absent if that is not known.
	CABundle CABundle `json:"caBundle,omitempty"`
	// Reason says why the cluster has failed.
	Reason string `json:"reason,omitempty"`
	// Kubeconfigs is how many lead there.
	Kubeconfigs int `json:"kubeconfigs"`
	Tries       int `json:"tries"`
	// Milliseconds is how long all tries took.
	Milliseconds int `json:"milliseconds"`
}

// RotatedKubeconfig is one kubeconfig.
type RotatedKubeconfig struct {
	// Where is its path, or the Secret that it is in.
	Where   string      `json:"where"`
	Outcome FileOutcome `json:"outcome"`
	// Reason says why.
	Reason  string  `json:"reason,omitempty"`
	Entries []Entry `json:"entries,omitempty"`
	// Added are the certificates that it trusts now, and did not trust before.
	Added []AddedCA `json:"added,omitempty"`
}

// ClusterOutcome is how it went with a cluster.
type ClusterOutcome string

// Enum lists the outcomes.
func (ClusterOutcome) Enum() []string {
	return []string{"asked", "failed", "unrelated", "notAsked"}
}

// BundleSource says where a CA bundle comes from: the endpoint, or an administrator's kubeconfig.
type BundleSource string

// Enum lists the sources.
func (BundleSource) Enum() []string { return []string{"endpoint", "admin"} }
