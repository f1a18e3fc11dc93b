package session

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Kubeconfig is a kubeconfig and where it is from.
type Kubeconfig struct {
	File   string
	Config *clientcmdapi.Config
}

// maxKubeconfig bounds a file that may be a kubeconfig, in bytes.
const maxKubeconfig = 4 << 20

// ReadKubeconfigs loads files, and from folders every file below them that is a kubeconfig. No credential plugin runs.
func ReadKubeconfigs(ctx context.Context, paths []string) ([]Kubeconfig, error) {
	files, err := kubeconfig.Find(ctx, paths)
	if err != nil {
		return nil, err
	}
	var all []Kubeconfig
	for _, file := range files {
		if file.Err != nil {
			return nil, ui.Usage(fmt.Errorf("reading the kubeconfigs: %w", file.Err))
		}
		config, err := ReadKubeconfig(file.Path)
		switch {
		case err == nil:
			all = append(all, Kubeconfig{file.Path, config})
		case file.Named:
			return nil, ui.Usage(fmt.Errorf("reading kubeconfig %q: %w", file.Path, err))
		}
	}
	return all, nil
}

// ReadKubeconfig loads a file that has at least one cluster. Paths in it become absolute.
func ReadKubeconfig(path string) (*clientcmdapi.Config, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxKubeconfig {
		return nil, fmt.Errorf("it is no file of up to %d bytes", maxKubeconfig)
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, err
	}
	if len(config.Clusters) == 0 {
		return nil, errors.New("there is no cluster in it")
	}
	return config, clientcmd.ResolveLocalPaths(config)
}
