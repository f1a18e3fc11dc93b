package kubeconfig

import (
	"fmt"
	"io"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// LoadAsWritten loads the kubeconfig at path. Relative paths in it stay relative. It returns ErrNotKubeconfig for
// another file, and ErrDamaged for an invalid kubeconfig.
func LoadAsWritten(path string) (*clientcmdapi.Config, error) {
	content, err := atomicfile.ReadFile(path, maxSize)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, explainRead(err))
	}
	return loadText(path, content)
}

// LoadInput is Load for a file that a user names, which may be a pipe.
func LoadInput(path string, inputs *atomicfile.Inputs) (*clientcmdapi.Config, error) {
	content, err := readInput(path, inputs)
	if err != nil {
		return nil, err
	}
	config, err := loadText(path, content)
	if err != nil {
		return nil, err
	}
	return config, resolvePaths(path, config)
}

// LoadLikeKubectl is LoadInput for a file that kubectl uses as well. It accepts what kubectl accepts, such as an empty
// file.
func LoadLikeKubectl(path string, inputs *atomicfile.Inputs) (*clientcmdapi.Config, error) {
	content, err := readInput(path, inputs)
	if err != nil {
		return nil, err
	}
	config, failed := clientcmd.Load(content)
	if failed != nil {
		if config, err = loadText(path, content); err != nil {
			return nil, err
		}
	}
	return config, resolvePaths(path, config)
}

func readInput(path string, inputs *atomicfile.Inputs) ([]byte, error) {
	content, err := inputs.Read(path, maxSize)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, explainRead(rootCause(err)))
	}
	return content, nil
}

// loadText parses the content of the kubeconfig at path.
func loadText(path string, content []byte) (*clientcmdapi.Config, error) {
	_, config, err := parse(content)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	return config, nil
}

// Load is LoadAsWritten with relative paths made absolute.
func Load(path string) (*clientcmdapi.Config, error) {
	config, err := LoadAsWritten(path)
	if err != nil {
		return nil, err
	}
	return config, resolvePaths(path, config)
}

// resolvePaths makes relative paths in the kubeconfig at path absolute.
func resolvePaths(path string, config *clientcmdapi.Config) error {
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
		return fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	return nil
}

// WithDefaults returns config with the defaults that parsing its text sets, which Build omits.
func WithDefaults(config *clientcmdapi.Config) (*clientcmdapi.Config, error) {
	text, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	return clientcmd.Load(text)
}

// Write writes config as YAML.
func Write(w io.Writer, config *clientcmdapi.Config) error {
	content, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	if _, err := w.Write(content); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return nil
}

// WriteFile atomically replaces the file at path with config as YAML, mode 0600.
func WriteFile(path string, config *clientcmdapi.Config) error {
	content, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	if err := atomicfile.Write(path, content); err != nil {
		return fmt.Errorf("writing kubeconfig %q: %w", path, err)
	}
	return nil
}
