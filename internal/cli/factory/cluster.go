package factory

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// ClusterFlags select a cluster: a kubeconfig and one of its contexts.
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
		"kubeconfig file (default: the files in $KUBECONFIG, or else ~/.kube/config)",
	)
	flags.StringVar(&c.Context, "kubeconfig-context", c.Context, "context of the kubeconfig (default: the current one)")
	Bind(flags, "kubeconfig", KeyKubeconfig)
	Bind(flags, "kubeconfig-context", KeyKubeconfigContext)
}

// Cluster is one context of the user's kubeconfig.
type Cluster struct {
	Source *kubeconfig.Source
	Raw    *clientcmdapi.Config // the whole kubeconfig
	REST   *rest.Config         // for requests as the kubeconfig's user
}

// Cluster loads the kubeconfig and selects the context. It sends no request.
func (f *Factory) Cluster(flags ClusterFlags) (*Cluster, error) {
	rules, where, err := f.loadingRules(flags.Kubeconfig)
	if err != nil {
		return nil, err
	}
	raw, found, err := f.load(rules.GetLoadingPrecedence())
	switch {
	case errors.Is(err, kubeconfig.ErrDamaged):
		return nil, ui.WithHint(err, "fix the file first")
	case err != nil:
		return nil, ui.WithHint(err, giveKubeconfig)
	case !found:
		return nil, ui.WithHint(fmt.Errorf("loading %s: there is no such file", where), giveKubeconfig)
	case len(raw.Contexts) == 0 && len(raw.Clusters) == 0:
		return nil, ui.WithHint(fmt.Errorf("loading %s: it has no cluster", where), giveKubeconfig)
	}
	chosen := cmp.Or(flags.Context, raw.CurrentContext)
	source, err := kubeconfig.Select(raw, flags.Context)
	if err != nil {
		hint := "choose a context with --kubeconfig-context"
		if others := len(raw.Contexts); others == 0 || others == 1 && raw.Contexts[chosen] != nil {
			hint = giveKubeconfig
		}
		return nil, ui.WithHint(fmt.Errorf("loading %s: %w", where, err), "%s", hint)
	}
	embedded, err := embedFiles(raw, source)
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", where, err)
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*embedded, source.ContextName, &clientcmd.ConfigOverrides{}, rules).
		ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", where, err)
	}
	config.UserAgent = "pinniped"
	config.WarningHandler = rest.NewWarningWriter(f.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	return &Cluster{Source: source, Raw: raw, REST: config}, nil
}

// load reads kubeconfigs and merges them as kubectl does: the first file with an entry wins, and missing files are
// skipped. Each file is read once. found is false if none exists.
func (f *Factory) load(paths []string) (merged *clientcmdapi.Config, found bool, err error) {
	merged = clientcmdapi.NewConfig()
	for _, path := range paths {
		if path == "" {
			continue
		}
		one, err := kubeconfig.LoadLikeKubectl(path, f.Inputs)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		found = true
		merged.CurrentContext = cmp.Or(merged.CurrentContext, one.CurrentContext)
		addMissing(merged.Clusters, one.Clusters)
		addMissing(merged.AuthInfos, one.AuthInfos)
		addMissing(merged.Contexts, one.Contexts)
		addMissing(merged.Extensions, one.Extensions)
	}
	return merged, found, nil
}

func addMissing[V any](to, from map[string]V) {
	for name, value := range from {
		if _, ok := to[name]; !ok {
			to[name] = value
		}
	}
}

// embedFiles returns the context with the content of the files that it names. client-go would block on a pipe, and read
// a device without end.
func embedFiles(raw *clientcmdapi.Config, source *kubeconfig.Source) (*clientcmdapi.Config, error) {
	cluster, user := raw.Clusters[source.ClusterName].DeepCopy(), clientcmdapi.NewAuthInfo()
	if given := raw.AuthInfos[source.UserName]; given != nil {
		user = given.DeepCopy()
	}
	for _, one := range []struct {
		what string
		path *string
		data *[]byte
	}{
		{"CA bundle", &cluster.CertificateAuthority, &cluster.CertificateAuthorityData},
		{"client certificate", &user.ClientCertificate, &user.ClientCertificateData},
		{"key", &user.ClientKey, &user.ClientKeyData},
	} {
		if *one.path == "" || len(*one.data) > 0 {
			continue
		}
		var err error
		if *one.data, err = kubeconfig.ReadNamed(*one.path); err != nil {
			return nil, fmt.Errorf("reading the %s: %w", one.what, err)
		}
		*one.path = ""
	}
	if user.TokenFile != "" { // client-go rereads it
		if _, err := kubeconfig.ReadNamed(user.TokenFile); err != nil {
			return nil, fmt.Errorf("reading the token: %w", err)
		}
	}
	embedded := clientcmdapi.NewConfig()
	embedded.CurrentContext = source.ContextName
	embedded.Contexts[source.ContextName] = raw.Contexts[source.ContextName]
	embedded.Clusters[source.ClusterName], embedded.AuthInfos[source.UserName] = cluster, user
	return embedded, nil
}

const giveKubeconfig = "set the cluster's kubeconfig with --kubeconfig or KUBECONFIG"

// loadingRules returns the loading rules, and how to call what they load in an error.
func (f *Factory) loadingRules(path string) (*clientcmd.ClientConfigLoadingRules, string, error) {
	if path != "" {
		if _, err := os.Stat(path); err != nil {
			return nil, "", ui.WithHint(fmt.Errorf("loading kubeconfig %q: %w", path, rootCause(err)), giveKubeconfig)
		}
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, fmt.Sprintf("kubeconfig %q", path), nil
	}
	if list := f.Getenv("KUBECONFIG"); list != "" {
		// As kubectl does, skip missing files.
		return &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(list)},
			fmt.Sprintf("the kubeconfig in KUBECONFIG=%q", list), nil
	}
	home, err := f.HomeDir()
	if err != nil {
		return nil, "", ui.WithHint(fmt.Errorf("finding the kubeconfig: %w", err), "set it with --kubeconfig or KUBECONFIG")
	}
	standard := filepath.Join(home, ".kube", "config")
	return &clientcmd.ClientConfigLoadingRules{Precedence: []string{standard}}, fmt.Sprintf("kubeconfig %q", standard), nil
}

// rootCause removes operation and path from a file error, for messages that already have them.
func rootCause(err error) error {
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		return pathErr.Err
	}
	return err
}

// Connect returns a client for the cluster and the API groups with suffix. It sends no request.
func (f *Factory) Connect(cluster *Cluster, suffix string) (*discovery.Client, error) {
	return discovery.Connect(cluster.REST, suffix)
}

// ValidateSuffix checks the value of --api-group-suffix.
func ValidateSuffix(suffix string) error {
	if err := apis.ValidateGroupSuffix(suffix); err != nil {
		return fmt.Errorf("invalid API group suffix: %w", err)
	}
	return nil
}
