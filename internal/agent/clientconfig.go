package agent

import (
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// DefaultNamespace is the namespace of the manifests.
const DefaultNamespace = "pinniped-concierge"

// podNamespaceFile contains the namespace of a pod.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// clientConfig returns the client configuration from a kubeconfig, or for the pod's service account if path is empty.
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

// named sets the user agent and removes the client-side rate limit: the API server limits requests by priority and
// fairness, and a limit here would delay a certificate behind other writes.
func named(config *rest.Config, version string) *rest.Config {
	config.UserAgent = "pinniped-agent/" + version
	config.QPS = -1
	return config
}

// namespaceOr returns asked, else the pod's namespace, else fallback.
func namespaceOr(asked, fallback string) string {
	if asked != "" {
		return asked
	}
	if content, err := os.ReadFile(podNamespaceFile); err == nil {
		return strings.TrimSpace(string(content))
	}
	return fallback
}
