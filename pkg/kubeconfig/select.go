package kubeconfig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Source is a context of a kubeconfig with its cluster.
type Source struct {
	ContextName string
	ClusterName string
	UserName    string
	Cluster     *clientcmdapi.Cluster // a copy
}

// Select returns the context contextName, or the current one if that is empty. It returns an error if the context, its
// cluster or its user does not exist.
func Select(config *clientcmdapi.Config, contextName string) (*Source, error) {
	contextName = cmp.Or(contextName, config.CurrentContext)
	if contextName == "" {
		return nil, fmt.Errorf("no context chosen: the kubeconfig has no current-context%s", contexts(config))
	}
	kubeContext, ok := config.Contexts[contextName]
	if !ok || kubeContext == nil {
		return nil, fmt.Errorf("no such context %q%s", contextName, contexts(config))
	}
	cluster, ok := config.Clusters[kubeContext.Cluster]
	if !ok || cluster == nil {
		return nil, fmt.Errorf("no such cluster %q, which context %q refers to", kubeContext.Cluster, contextName)
	}
	if _, ok := config.AuthInfos[kubeContext.AuthInfo]; !ok {
		return nil, fmt.Errorf("no such user %q, which context %q refers to", kubeContext.AuthInfo, contextName)
	}
	if cluster.Server == "" {
		return nil, fmt.Errorf("cluster %q has no server", kubeContext.Cluster)
	}
	return &Source{
		ContextName: contextName,
		ClusterName: kubeContext.Cluster,
		UserName:    kubeContext.AuthInfo,
		Cluster:     cluster.DeepCopy(),
	}, nil
}

// CABundle returns the CA bundle (PEM) of the source's cluster: its certificate-authority-data, else the content of its
// certificate-authority file. It is empty if the cluster is verified with the system roots.
func (s *Source) CABundle() ([]byte, error) {
	if len(s.Cluster.CertificateAuthorityData) > 0 || s.Cluster.CertificateAuthority == "" {
		return s.Cluster.CertificateAuthorityData, nil
	}
	bundle, err := ReadNamed(s.Cluster.CertificateAuthority)
	if err != nil {
		return nil, fmt.Errorf("reading the CA bundle of cluster %q: %w", s.ClusterName, err)
	}
	return bundle, nil
}

// contexts lists the contexts of a kubeconfig, for messages.
func contexts(config *clientcmdapi.Config) string {
	if len(config.Contexts) == 0 {
		return " (it has no contexts)"
	}
	return fmt.Sprintf(" (its contexts: %s)", strings.Join(slices.Sorted(maps.Keys(config.Contexts)), ", "))
}
