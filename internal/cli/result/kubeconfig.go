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
	Clusters       int `json:"clusters"`       // the number of servers in the kubeconfigs
	ClustersFailed int `json:"clustersFailed"` // the number of servers without a usable response
	Kubeconfigs    int `json:"kubeconfigs"`
	Rotated        int `json:"rotated"`
	Current        int `json:"current"`
	Skipped        int `json:"skipped"`
	Unrelated      int `json:"unrelated"`
	Failed         int `json:"failed"`
	NotDone        int `json:"notDone"` // the number of kubeconfigs that were not processed before the command ended
	Milliseconds   int `json:"milliseconds"`
}

// RotatedCluster is a server in the kubeconfigs.
type RotatedCluster struct {
	// Server is its URL in a kubeconfig or, for an administrator's kubeconfig that failed, its file and context.
	Server       string         `json:"server"`
	Outcome      ClusterOutcome `json:"outcome"`
	Source       BundleSource   `json:"source,omitempty"`   // where the CA bundle is from
	CABundle     CABundle       `json:"caBundle,omitempty"` // the published CA bundle; absent if unknown
	Reason       string         `json:"reason,omitempty"`   // why the cluster has failed
	Kubeconfigs  int            `json:"kubeconfigs"`        // the number of kubeconfigs that use it
	Tries        int            `json:"tries"`
	Milliseconds int            `json:"milliseconds"` // the duration of all attempts
}

// RotatedKubeconfig is the result for one kubeconfig.
type RotatedKubeconfig struct {
	Where   string      `json:"where"` // its path or its Secret
	Outcome FileOutcome `json:"outcome"`
	Reason  string      `json:"reason,omitempty"`
	Entries []Entry     `json:"entries,omitempty"`
	Added   []AddedCA   `json:"added,omitempty"` // the certificates that it newly trusts
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
