package fleet

import (
	"cmp"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// The sources of the CA bundle of a cluster.
const (
	SourceEndpoint result.BundleSource = "endpoint" // the proxy itself, verified with the old CA bundle
	SourceAdmin    result.BundleSource = "admin"    // the CredentialIssuer, read by an administrator
)

// The outcomes for a cluster.
const (
	ClusterAsked     result.ClusterOutcome = "asked"
	ClusterFailed    result.ClusterOutcome = "failed"
	ClusterUnrelated result.ClusterOutcome = "unrelated" // it is not an impersonation proxy, and no login uses it
	ClusterNotAsked  result.ClusterOutcome = "notAsked"  // the run ended before
)

// Cluster is a server in the kubeconfigs.
type Cluster struct {
	Server   string // as in a kubeconfig
	Source   result.BundleSource
	Outcome  result.ClusterOutcome
	CABundle []byte // published, PEM
	Err      error
	Tries    int
	Took     time.Duration

	proxy  string
	login  bool // a credential plugin of ours uses it
	trusts []kubeconfig.Trust
	items  []int // the kubeconfigs that use it
	target *kubeconfig.Target
	skip   bool // all of its entries skip verification
}

// group groups the trusts of the items by cluster, in order of first use. It leaves out servers without https.
func (r *run) group() {
	r.byKey = map[string]*Cluster{}
	for i, item := range r.items {
		for _, trust := range item.trusts {
			key, ok := canonical(trust.Server)
			if !ok {
				continue
			}
			cluster := r.byKey[key]
			if cluster == nil {
				cluster = &Cluster{Server: trust.Server, Outcome: ClusterNotAsked, skip: true}
				r.byKey[key] = cluster
				r.clusters = append(r.clusters, cluster)
			}
			if n := len(cluster.items); n == 0 || cluster.items[n-1] != i {
				cluster.items = append(cluster.items, i)
			}
			cluster.login = cluster.login || trust.Kind == "user"
			cluster.proxy = cmp.Or(cluster.proxy, trust.ProxyURL)
			if trust.Insecure || trust.Err != nil {
				continue
			}
			cluster.skip = false
			if !slices.ContainsFunc(cluster.trusts, func(t kubeconfig.Trust) bool {
				return t.Host == trust.Host && string(t.CABundle) == string(trust.CABundle)
			}) {
				cluster.trusts = append(cluster.trusts, trust)
			}
		}
	}
}

// canonical returns the canonical form of a server's URL, and false if it is not https.
func canonical(server string) (string, bool) {
	u, err := url.Parse(strings.TrimSpace(server))
	if err != nil || !strings.EqualFold(u.Scheme, "https") || u.Hostname() == "" {
		return "", false
	}
	names := kubeconfig.Canonical([]string{net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))})
	if len(names) == 0 {
		return "", false
	}
	return names[0] + strings.TrimSuffix(u.Path, "/"), true
}

// Items returns the number of kubeconfigs that use the cluster.
func (c *Cluster) Items() int { return len(c.items) }
