package factory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// ClusterFlags name a cluster: a kubeconfig and one of its contexts.
type ClusterFlags struct {
	Kubeconfig string
	Context    string
}

// AddFlags adds --kubeconfig and --kubeconfig-context.
func (c *ClusterFlags) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(
		&c.Kubeconfig,
		"kubeconfig",
		c.Kubeconfig,
		"path of the kubeconfig (default: $KUBECONFIG, which may be a list, or else ~/.kube/config)",
	)
	flags.StringVar(&c.Context, "kubeconfig-context", c.Context, "context of the kubeconfig (default: the current one)")
	Bind(flags, "kubeconfig", KeyKubeconfig)
	Bind(flags, "kubeconfig-context", KeyKubeconfigContext)
}

// Cluster is one context of the user's kubeconfig.
type Cluster struct {
	Source *kubeconfig.Source
	Raw    *clientcmdapi.Config // all that was loaded
	REST   *rest.Config         // for requests as the kubeconfig's user
}

// Cluster loads the kubeconfig and picks the context. It contacts nothing.
func (f *Factory) Cluster(flags ClusterFlags) (*Cluster, error) {
	rules, where, err := f.loadingRules(flags.Kubeconfig)
	if err != nil {
		return nil, err
	}
	raw, err := rules.Load()
	if err != nil {
		err = unreadable(rules.GetLoadingPrecedence(), fmt.Errorf("loading %s: %w", where, err))
		if errors.Is(err, kubeconfig.ErrDamaged) {
			return nil, ui.WithHint(err, "fix the file first")
		}
		return nil, ui.WithHint(err, giveKubeconfig)
	}
	if len(raw.Contexts) == 0 && len(raw.Clusters) == 0 {
		problem := "there is no cluster in it"
		if !slices.ContainsFunc(rules.GetLoadingPrecedence(), exists) {
			problem = "there is no such file"
		}
		return nil, ui.WithHint(fmt.Errorf("loading %s: %s", where, problem), giveKubeconfig)
	}
	// Paths inside a kubeconfig are relative to its own directory.
	if err := clientcmd.ResolveLocalPaths(raw); err != nil {
		return nil, fmt.Errorf("loading %s: %w", where, err)
	}
	source, err := kubeconfig.Select(raw, flags.Context)
	if err != nil {
		return nil, ui.WithHint(fmt.Errorf("loading %s: %w", where, err), "choose a context with --kubeconfig-context")
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*raw, source.ContextName, &clientcmd.ConfigOverrides{}, rules).
		ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", where, err)
	}
	if err := embedFiles(config); err != nil {
		return nil, fmt.Errorf("loading %s: %w", where, err)
	}
	config.UserAgent = "pinniped"
	config.WarningHandler = rest.NewWarningWriter(f.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	return &Cluster{Source: source, Raw: raw, REST: config}, nil
}

// embedFiles reads the files that the kubeconfig names. client-go would wait for a pipe, and read a device without end.
func embedFiles(config *rest.Config) error {
	tls := &config.TLSClientConfig
	for _, one := range []struct {
		what string
		path *string
		data *[]byte
	}{
		{"CA bundle", &tls.CAFile, &tls.CAData},
		{"client certificate", &tls.CertFile, &tls.CertData},
		{"key", &tls.KeyFile, &tls.KeyData},
	} {
		if *one.path == "" || len(*one.data) > 0 {
			continue
		}
		var err error
		if *one.data, err = kubeconfig.ReadNamed(*one.path); err != nil {
			return fmt.Errorf("reading the %s: %w", one.what, err)
		}
		*one.path = ""
	}
	if config.BearerTokenFile != "" { // client-go reads it again now and then
		if _, err := kubeconfig.ReadNamed(config.BearerTokenFile); err != nil {
			return fmt.Errorf("reading the token: %w", err)
		}
	}
	return nil
}

const giveKubeconfig = "give the kubeconfig of the cluster with --kubeconfig or KUBECONFIG"

// unreadable returns the error about the first of the files that cannot be read, in our words: client-go's are about Go.
// It returns instead when all can be read.
func unreadable(paths []string, instead error) error {
	for _, path := range paths {
		if _, err := kubeconfig.LoadAsWritten(path); err != nil && exists(path) {
			return err
		}
	}
	return instead
}

// loadingRules also returns how to name, in an error, what they load.
func (f *Factory) loadingRules(path string) (*clientcmd.ClientConfigLoadingRules, string, error) {
	if path != "" {
		if _, err := os.Stat(path); err != nil {
			return nil, "", ui.WithHint(fmt.Errorf("loading kubeconfig %q: %w", path, rootCause(err)), giveKubeconfig)
		}
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, fmt.Sprintf("kubeconfig %q", path), nil
	}
	if list := f.Getenv("KUBECONFIG"); list != "" {
		// As kubectl does: what is missing in the list is passed over.
		return &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(list)},
			fmt.Sprintf("the kubeconfig in KUBECONFIG=%q", list), nil
	}
	home, err := f.HomeDir()
	if err != nil {
		return nil, "", ui.WithHint(fmt.Errorf("finding the kubeconfig: %w", err), "give it with --kubeconfig or KUBECONFIG")
	}
	standard := filepath.Join(home, ".kube", "config")
	return &clientcmd.ClientConfigLoadingRules{Precedence: []string{standard}}, fmt.Sprintf("kubeconfig %q", standard), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// rootCause drops the operation and path of a file error that is already being named.
func rootCause(err error) error {
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		return pathErr.Err
	}
	return err
}

// Connect returns a client for the cluster and the API groups under suffix. It sends nothing yet.
func (f *Factory) Connect(cluster *Cluster, suffix string) (*discovery.Client, error) {
	return discovery.Connect(cluster.REST, suffix)
}

// ValidateSuffix checks the value of an API group suffix flag.
func ValidateSuffix(suffix string) error {
	if err := apis.ValidateGroupSuffix(suffix); err != nil {
		return fmt.Errorf("invalid API group suffix: %w", err)
	}
	return nil
}
