package agent

import (
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/version"
)

// DefaultNamespace is where the agent is installed unless somebody chose another place.
const DefaultNamespace = "pinniped-concierge"

// podNamespaceFile is where a pod finds its namespace.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Version returns the version that this program was built as.
func Version() string { return version.Get().GitVersion }

// clientConfig returns how to reach the cluster: as a kubeconfig says, or as the pod's service account when path is empty.
func clientConfig(path string) (*rest.Config, error) {
	if path == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("finding the pod's service account (outside a cluster, use --kubeconfig): %w", err)
		}
		return named(config), nil
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	return named(config), nil
}

func named(config *rest.Config) *rest.Config {
	config.UserAgent = "pinniped-agent/" + Version()
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
