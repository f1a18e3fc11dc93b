package fleet

import (
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Source says where the CA bundle of a cluster comes from.
type Source string

// The sources.
const (
	SourceEndpoint Source = "endpoint" // the proxy itself, verified by the old CA bundle
	SourceAdmin    Source = "admin"    // the CredentialIssuer, read with an administrator's kubeconfig
)

// ClusterOutcome is how it went with one cluster.
type ClusterOutcome string

// The outcomes.
const (
	ClusterAsked     ClusterOutcome = "asked"
	ClusterFailed    ClusterOutcome = "failed"
	ClusterUnrelated ClusterOutcome = "unrelated" // it is no impersonation proxy, and no login leads there
	ClusterNotAsked  ClusterOutcome = "notAsked"  // the run ended before its turn
)

// Cluster is one server that kubeconfigs lead to.
type Cluster struct {
	Server   string // as a kubeconfig has it
	Source   Source
	Outcome  ClusterOutcome
	CABundle []byte // that it publishes, PEM
	Err      error
	Tries    int
	Took     time.Duration

	key     string
	proxy   string
	login   bool // a credential plugin of ours leads there
	trusts  []kubeconfig.Trust
	members []member
	target  *kubeconfig.Target
	skip    bool // all that leads there verifies nothing
}

// member is an entry of a kubeconfig that leads to a cluster.
type member struct {
	item       int
	kind, name string
}

// group sorts what the items trust by clusters, in the order in which they are first named. Servers that are not
// reached by https, and items that need nothing, are left out.
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

// canonical returns one spelling of a server's URL. The second result is false when it is not reached by https.
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

// Items returns how many kubeconfigs lead to the cluster.
func (c *Cluster) Items() int {
	count := 0
	for i, m := range c.members {
		if i == 0 || c.members[i-1].item != m.item {
			count++
		}
	}
	return count
}
