package result

// FleetRotation is what was done with the kubeconfigs of many clusters.
type FleetRotation struct {
	Head
	DryRun bool `json:"dryRun"`
	// Resumed is true when a run before, which was interrupted, had done a part.
	Resumed     bool              `json:"resumed,omitempty"`
	Summary     FleetSummary      `json:"summary"`
	Clusters    []FleetCluster    `json:"clusters"`
	Kubeconfigs []FleetKubeconfig `json:"kubeconfigs"`
}

// FleetSummary counts.
type FleetSummary struct {
	// Clusters are all servers that the kubeconfigs lead to.
	Clusters int `json:"clusters"`
	// ClustersFailed are those which gave no answer, or none that could be used.
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

// FleetCluster is one server that kubeconfigs lead to.
type FleetCluster struct {
	// Server is its URL as a kubeconfig has it, or, of an administrator's kubeconfig that failed, its file and context.
	Server  string              `json:"server"`
	Outcome FleetClusterOutcome `json:"outcome"`
	// Source says who told the CA bundle.
	Source FleetSource `json:"source,omitempty"`
	// CABundle is what the cluster advertises; absent if that is not known.
	CABundle CABundle `json:"caBundle,omitempty"`
	// Reason says why the cluster has failed.
	Reason string `json:"reason,omitempty"`
	// Kubeconfigs is how many lead there.
	Kubeconfigs int `json:"kubeconfigs"`
	Tries       int `json:"tries"`
	// Milliseconds is how long all tries took.
	Milliseconds int `json:"milliseconds"`
}

// FleetKubeconfig is one kubeconfig of a fleet.
type FleetKubeconfig struct {
	// Where is its path, or the Secret that it is in.
	Where   string      `json:"where"`
	Outcome FileOutcome `json:"outcome"`
	// Reason says why.
	Reason  string  `json:"reason,omitempty"`
	Entries []Entry `json:"entries,omitempty"`
	// Added are the certificates that it trusts now, and did not trust before.
	Added []AddedCA `json:"added,omitempty"`
}

// FleetClusterOutcome is how it went with a cluster.
type FleetClusterOutcome string

// Enum lists the outcomes.
func (FleetClusterOutcome) Enum() []string {
	return []string{"asked", "failed", "unrelated", "notAsked"}
}

// FleetSource says who told a CA bundle: the endpoint, or an administrator's kubeconfig.
type FleetSource string

// Enum lists the sources.
func (FleetSource) Enum() []string { return []string{"endpoint", "admin"} }
