package kubeconfig

import (
	"fmt"
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
	if contextName == "" {
		contextName = config.CurrentContext
	}
	if contextName == "" {
		return nil, fmt.Errorf(
			"no context chosen: the kubeconfig has no current-context%s",
			listed("contexts", names(config.Contexts)),
		)
	}
	kubeContext, ok := config.Contexts[contextName]
	if !ok || kubeContext == nil {
		return nil, fmt.Errorf("no such context %q%s", contextName, listed("contexts", names(config.Contexts)))
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

func names[V any](m map[string]V) []string {
	all := make([]string, 0, len(m))
	for name := range m {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func listed(what string, all []string) string {
	if len(all) == 0 {
		return " (it has no " + what + ")"
	}
	return fmt.Sprintf(" (its %s: %s)", what, strings.Join(all, ", "))
}
