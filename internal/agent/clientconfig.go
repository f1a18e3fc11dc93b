package agent

import (
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// DefaultNamespace is the namespace in which the manifests install the agent.
const DefaultNamespace = "pinniped-concierge"

// podNamespaceFile is where a pod finds its namespace.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// clientConfig returns how to reach the cluster: as a kubeconfig says, or as the pod's service account when path is
// empty.
func clientConfig(path, version string) (*rest.Config, error) {
	if path == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("finding the pod's service account (outside a cluster, use --kubeconfig): %w", err)
		}
		return named(config, version), nil
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	return named(config, version), nil
}

// named gives the agent's requests their name. How many there may be is for the API server to say (priority and
// fairness): a limit here would make a certificate wait behind whatever else is written.
func named(config *rest.Config, version string) *rest.Config {
	config.UserAgent = "pinniped-agent/" + version
	config.QPS = -1
	return config
}

// namespaceOr returns the namespace that was asked for, else the pod's, else fallback.
func namespaceOr(asked, fallback string) string {
	if asked != "" {
		return asked
	}
	if content, err := os.ReadFile(podNamespaceFile); err == nil {
		return strings.TrimSpace(string(content))
	}
	return fallback
}
