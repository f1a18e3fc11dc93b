package fleet

import (
	"fmt"
	"path"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// contextFilter returns a function that reports whether an entry of config is used by a context whose name matches a
// pattern. Without patterns it returns nil: everything is included.
func contextFilter(config *clientcmdapi.Config, patterns []string) (func(kubeconfig.Trust) bool, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	used := map[string]bool{}
	for name, kubeContext := range config.Contexts {
		if kubeContext == nil {
			continue
		}
		for _, pattern := range patterns {
			matched, err := path.Match(oneName(pattern), oneName(name))
			if err != nil {
				return nil, fmt.Errorf("reading the pattern %q: %w", pattern, err)
			}
			if matched {
				used["cluster/"+kubeContext.Cluster], used["user/"+kubeContext.AuthInfo] = true, true
			}
		}
	}
	return func(trust kubeconfig.Trust) bool { return used[trust.Kind+"/"+trust.Name] }, nil
}

// oneName replaces slashes, so that "*" also matches those in context names.
func oneName(text string) string { return strings.ReplaceAll(text, "/", "\x00") }

// rotateContexts is kubeconfig.Rotate for the contexts that match patterns.
func rotateContexts(content []byte, patterns []string, targets []kubeconfig.Target) (*kubeconfig.Rotation, error) {
	if len(patterns) == 0 {
		return kubeconfig.Rotate(content, targets...)
	}
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", kubeconfig.ErrDamaged, err)
	}
	include, err := contextFilter(config, patterns)
	if err != nil {
		return nil, err
	}
	return kubeconfig.RotateOnly(content, include, targets...)
}
