package kubeconfig

import (
	"encoding/base64"
	"fmt"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Trust is one place in a kubeconfig that leads to an endpoint, and what the endpoint is verified with there.
type Trust struct {
	// Where names the place: a cluster, or the user whose login plugin goes there.
	Where string
	// CABundle is PEM; when it is empty, the system roots count.
	CABundle []byte
	// Insecure is true when nothing is verified there at all.
	Insecure bool
	// Err says why the CA bundle is not known.
	Err error
}

// Trusts returns every place of config that leads to endpoint, an https URL, in the order of their names. Files that config
// refers to are read; their paths must be absolute, or relative to the working directory.
func Trusts(config *clientcmdapi.Config, endpoint string) []Trust {
	var found []Trust
	for _, name := range names(config.Clusters) {
		cluster := config.Clusters[name]
		if cluster == nil || !SameEndpoint(cluster.Server, endpoint) {
			continue
		}
		source := Source{ClusterName: name, Cluster: cluster}
		bundle, err := source.CABundle()
		found = append(found, Trust{Where: fmt.Sprintf("cluster %q", name), CABundle: bundle, Insecure: cluster.InsecureSkipTLSVerify, Err: err})
	}
	for _, name := range names(config.AuthInfos) {
		user := config.AuthInfos[name]
		if user == nil || user.Exec == nil {
			continue
		}
		if at, ok := argument(user.Exec.Args, endpointFlag); !ok || !SameEndpoint(at, endpoint) {
			continue
		}
		trust := Trust{Where: fmt.Sprintf("user %q", name)}
		data, _ := argument(user.Exec.Args, bundleFlag)
		if trust.CABundle, trust.Err = base64.StdEncoding.DecodeString(data); trust.Err != nil {
			trust.Err = fmt.Errorf("decoding %s: %w", bundleFlag, trust.Err)
		}
		found = append(found, trust)
	}
	return found
}

// argument returns the value of a flag, written as one argument or as two; the last one counts.
func argument(args []string, flag string) (value string, found bool) {
	for i, arg := range args {
		if text, ok := strings.CutPrefix(arg, flag+"="); ok {
			value, found = text, true
		} else if arg == flag && i+1 < len(args) {
			value, found = args[i+1], true
		}
	}
	return value, found
}
