package fleet

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// clusterAPI reads and writes the Secrets NAME-kubeconfig of Cluster API, with the kubeconfig in "value".
type clusterAPI struct{}

const (
	clusterAPIType   = "cluster.x-k8s.io/secret"
	clusterAPILabel  = "cluster.x-k8s.io/cluster-name"
	clusterAPISuffix = "-kubeconfig"
	clusterAPIKey    = "value"
)

func (clusterAPI) Kind() string     { return "capi" }
func (clusterAPI) Selector() string { return clusterAPILabel }

func (clusterAPI) Keys(secret *corev1.Secret) []string {
	// Early versions of Cluster API used type Opaque.
	ours := secret.Type == clusterAPIType || secret.Type == corev1.SecretTypeOpaque
	name := secret.Labels[clusterAPILabel]
	if !ours || name == "" || !strings.HasPrefix(secret.Name, name) || !strings.HasSuffix(secret.Name, clusterAPISuffix) {
		return nil
	}
	return []string{clusterAPIKey}
}

func (clusterAPI) Read(secret *corev1.Secret, key string) ([]byte, error) {
	return readKey(secret, key)
}

func (clusterAPI) Write(_ *corev1.Secret, key string, content []byte) (map[string][]byte, error) {
	return map[string][]byte{key: content}, nil
}

func readKey(secret *corev1.Secret, key string) ([]byte, error) {
	content, ok := secret.Data[key]
	if !ok {
		return nil, fmt.Errorf("there is no key %q in it", key)
	}
	return content, nil
}
