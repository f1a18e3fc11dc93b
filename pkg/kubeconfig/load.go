package kubeconfig

import (
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Load reads the kubeconfig at path, as RotateFile would. Relative paths in it become absolute. What is not a
// kubeconfig gives ErrNotKubeconfig, one that cannot be read ErrDamaged.
func Load(path string) (*clientcmdapi.Config, error) {
	content, err := readBounded(path)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	if _, err := parse(content); err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w: %w", path, ErrDamaged, err)
	}
	for _, cluster := range config.Clusters {
		if cluster != nil {
			cluster.LocationOfOrigin = path
		}
	}
	for _, user := range config.AuthInfos {
		if user != nil {
			user.LocationOfOrigin = path
		}
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	return config, nil
}
