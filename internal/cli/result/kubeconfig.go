package result

// KubeconfigRotation is the result for each kubeconfig and for the clusters that they use.
type KubeconfigRotation struct {
	Head
	DryRun      bool                `json:"dryRun"`
	Summary     RotationSummary     `json:"summary"`
	Clusters    []RotatedCluster    `json:"clusters"`
	Kubeconfigs []RotatedKubeconfig `json:"kubeconfigs"`
}

// RotationSummary has the counts of a rotation.
type RotationSummary struct {
	// Clusters is the number of servers in the kubeconfigs.
	Clusters int `json:"clusters"`
	// ClustersFailed is the number of servers without a usable response.
	ClustersFailed int `json:"clustersFailed"`
	Kubeconfigs    int `json:"kubeconfigs"`
	Rotated        int `json:"rotated"`
	Current        int `json:"current"`
	Skipped        int `json:"skipped"`
	Unrelated      int `json:"unrelated"`
	Failed         int `json:"failed"`
	// NotDone is the number of kubeconfigs that were not processed before the command ended.
	NotDone      int `json:"notDone"`
	Milliseconds int `json:"milliseconds"`
}

// RotatedCluster is a server in the kubeconfigs.
type RotatedCluster struct {
	// Server is its URL in a kubeconfig or, for an administrator's kubeconfig that failed, its file and context.
	Server  string         `json:"server"`
	Outcome ClusterOutcome `json:"outcome"`
	// Source is where the CA bundle is from.
	Source BundleSource `json:"source,omitempty"`
	// CABundle is the published CA bundle; absent if unknown.
	CABundle CABundle `json:"caBundle,omitempty"`
	// Reason is why the cluster has failed.
	Reason string `json:"reason,omitempty"`
	// Kubeconfigs is the number of kubeconfigs that use it.
	Kubeconfigs int `json:"kubeconfigs"`
	Tries       int `json:"tries"`
	// Milliseconds is the duration of all attempts.
	Milliseconds int `json:"milliseconds"`
}

// RotatedKubeconfig is the result for one kubeconfig.
type RotatedKubeconfig struct {
	// Where is its path or its Secret.
	Where   string      `json:"where"`
	Outcome FileOutcome `json:"outcome"`
	Reason  string      `json:"reason,omitempty"`
	Entries []Entry     `json:"entries,omitempty"`
	// Added are the certificates that it newly trusts.
	Added []AddedCA `json:"added,omitempty"`
}

// ClusterOutcome is the result for a cluster.
type ClusterOutcome string

// Enum lists the outcomes.
func (ClusterOutcome) Enum() []string {
	return []string{"asked", "failed", "unrelated", "notAsked"}
}

// BundleSource is where a CA bundle is from: the endpoint, or an administrator's kubeconfig.
type BundleSource string

// Enum lists the sources.
func (BundleSource) Enum() []string { return []string{"endpoint", "admin"} }
