package fleet

import (
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Source is where the CA bundle of a cluster is from.
type Source string

// The sources.
const (
	SourceEndpoint Source = "endpoint" // the proxy itself, verified with the old CA bundle
	SourceAdmin    Source = "admin"    // the CredentialIssuer, read by an administrator
)

// ClusterOutcome is the result for a cluster.
type ClusterOutcome string

// The outcomes.
const (
	ClusterAsked     ClusterOutcome = "asked"
	ClusterFailed    ClusterOutcome = "failed"
	ClusterUnrelated ClusterOutcome = "unrelated" // it is not an impersonation proxy, and no login uses it
	ClusterNotAsked  ClusterOutcome = "notAsked"  // the run ended before
)

// Cluster is a server in the kubeconfigs.
type Cluster struct {
	Server   string // as in a kubeconfig
	Source   Source
	Outcome  ClusterOutcome
	CABundle []byte // published, PEM
	Err      error
	Tries    int
	Took     time.Duration

	key     string
	proxy   string
	login   bool // a credential plugin of ours uses it
	trusts  []kubeconfig.Trust
	members []member
	target  *kubeconfig.Target
	skip    bool // all of its entries skip verification
}

// member is an entry of a kubeconfig for a cluster.
type member struct {
	item       int
	kind, name string
}

// group groups the trusts of the items by cluster, in order of first use. It leaves out servers without https.
func group(items []*Item) []*Cluster {
	var all []*Cluster
	known := map[string]*Cluster{}
	for i, item := range items {
		for _, trust := range item.trusts {
			key, ok := canonical(trust.Server)
			if !ok {
				continue
			}
			cluster := known[key]
			if cluster == nil {
				cluster = &Cluster{Server: trust.Server, key: key, Outcome: ClusterNotAsked, skip: true}
				known[key] = cluster
				all = append(all, cluster)
			}
			cluster.members = append(cluster.members, member{item: i, kind: trust.Kind, name: trust.Name})
			cluster.login = cluster.login || trust.Kind == "user"
			if cluster.proxy == "" {
				cluster.proxy = trust.ProxyURL
			}
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
	return all
}

// canonical returns the canonical form of a server's URL, and false if it is not https.
func canonical(server string) (string, bool) {
	u, err := url.Parse(strings.TrimSpace(server))
	if err != nil || !strings.EqualFold(u.Scheme, "https") || u.Hostname() == "" {
		return "", false
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	names := kubeconfig.Canonical([]string{net.JoinHostPort(u.Hostname(), port)})
	if len(names) == 0 {
		return "", false
	}
	return names[0] + strings.TrimSuffix(u.Path, "/"), true
}

// Items returns the number of kubeconfigs that use the cluster.
func (c *Cluster) Items() int {
	count := 0
	for i, m := range c.members {
		if i == 0 || c.members[i-1].item != m.item {
			count++
		}
	}
	return count
}
