package kubeconfig

import (
	"cmp"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// installationExtension is the extension of a cluster that identifies the installation.
const installationExtension = "pinniped.dev/installation"

// SetInstallation records the installation in the clusters of config, so that Merge recognizes it under another
// endpoint. The UID is that of the CredentialIssuer.
func SetInstallation(config *clientcmdapi.Config, uid string) error {
	text, err := json.Marshal(map[string]string{"uid": uid})
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		if cluster.Extensions == nil {
			cluster.Extensions = map[string]runtime.Object{}
		}
		cluster.Extensions[installationExtension] = &runtime.Unknown{Raw: text, ContentType: runtime.ContentTypeJSON}
	}
	return nil
}

func installation(cluster *clientcmdapi.Cluster) string {
	unknown, ok := cluster.Extensions[installationExtension].(*runtime.Unknown)
	if !ok {
		return ""
	}
	var is struct {
		UID string `json:"uid"`
	}
	if json.Unmarshal(unknown.Raw, &is) != nil {
		return ""
	}
	return is.UID
}

// OtherClusterError means that an entry with the name of a new one leads to another cluster.
type OtherClusterError struct {
	Kind, Name string
	There, New string // the endpoints
}

func (e *OtherClusterError) Error() string {
	text := fmt.Sprintf("the existing %s %q is for another cluster: its server is ", e.Kind, e.Name)
	if SameEndpoint(e.There, e.New) {
		return text + fmt.Sprintf("also %s, but its CA or installation is different", e.There)
	}
	return text + fmt.Sprintf("%s, not %s", e.There, e.New)
}

// refuseOtherCluster returns an error if a replaced entry would lead to another cluster, because users' commands would
// then go there.
func refuseOtherCluster(before, made *clientcmdapi.Config) error {
	for _, name := range slices.Sorted(maps.Keys(made.Clusters)) {
		if old := before.Clusters[name]; old != nil && !sameCluster(old, made.Clusters[name]) {
			return &OtherClusterError{Kind: kindCluster, Name: name, There: old.Server, New: made.Clusters[name].Server}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(made.Contexts)) {
		wanted := made.Clusters[made.Contexts[name].Cluster]
		if old := before.Contexts[name]; old != nil && wanted != nil {
			if to := before.Clusters[old.Cluster]; to != nil && !sameCluster(to, wanted) {
				return &OtherClusterError{Kind: kindContext, Name: name, There: to.Server, New: wanted.Server}
			}
		}
		user := made.Contexts[name].AuthInfo
		if before.Clusters[made.Contexts[name].Cluster] != nil {
			continue // the same cluster, possibly with a new endpoint
		}
		there, to := conciergeEndpoint(before.AuthInfos[user]), conciergeEndpoint(made.AuthInfos[user])
		if there != "" && to != "" && !SameEndpoint(there, to) {
			return &OtherClusterError{Kind: kindUser, Name: user, There: there, New: to}
		}
	}
	return nil
}

func conciergeEndpoint(user *clientcmdapi.AuthInfo) string {
	if user == nil || user.Exec == nil {
		return ""
	}
	if place := pluginPlace(user.Exec); place != nil {
		return place.Server
	}
	return ""
}

// sameCluster reports whether two entries lead to the same cluster: to the same installation, if both are known, else
// to the same endpoint with a common CA.
func sameCluster(a, b *clientcmdapi.Cluster) bool {
	if x, y := installation(a), installation(b); x != "" && y != "" {
		return x == y
	}
	if !SameEndpoint(a.Server, b.Server) {
		return false
	}
	x, y := a.CertificateAuthorityData, b.CertificateAuthorityData
	return len(x) == 0 || len(y) == 0 || haveOneInCommon(x, y)
}

func haveOneInCommon(a, b []byte) bool {
	known := blocks(a) // none if it is not a CA bundle, so nothing is known
	return len(known) == 0 || slices.ContainsFunc(blocks(b), func(one string) bool { return slices.Contains(known, one) })
}

// hasAll reports whether bundle contains all certificates of some.
func hasAll(bundle, some []byte) bool {
	known := blocks(bundle)
	return !slices.ContainsFunc(blocks(some), func(one string) bool { return !slices.Contains(known, one) })
}

// blocks returns the contents of the PEM blocks in a CA bundle.
func blocks(bundle []byte) []string {
	var all []string
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		all = append(all, string(block.Bytes))
	}
	return all
}

// keepCluster copies user settings from the replaced entry into wanted.
func keepCluster(old, wanted *clientcmdapi.Cluster) {
	wanted.ProxyURL = cmp.Or(wanted.ProxyURL, old.ProxyURL)
	wanted.DisableCompression = wanted.DisableCompression || old.DisableCompression
	if wanted.TLSServerName == "" && SameEndpoint(old.Server, wanted.Server) {
		wanted.TLSServerName = old.TLSServerName
	}
	keepExtensions(old.Extensions, &wanted.Extensions)
}

func keepExtensions(old map[string]runtime.Object, wanted *map[string]runtime.Object) {
	for name, extension := range old {
		if *wanted == nil {
			*wanted = map[string]runtime.Object{}
		}
		if (*wanted)[name] == nil {
			(*wanted)[name] = extension
		}
	}
}

// keepContext is keepCluster for a context.
func keepContext(old, wanted *clientcmdapi.Context) {
	wanted.Namespace = cmp.Or(wanted.Namespace, old.Namespace)
	if len(wanted.Extensions) == 0 {
		wanted.Extensions = old.Extensions
	}
}

// keepUser is keepCluster for a user.
func keepUser(old, wanted *clientcmdapi.AuthInfo) {
	keepExtensions(old.Extensions, &wanted.Extensions)
	if old.Exec == nil || wanted.Exec == nil {
		return
	}
	if len(wanted.Exec.Env) == 0 {
		wanted.Exec.Env = old.Exec.Env
	}
	wanted.Exec.InteractiveMode = cmp.Or(old.Exec.InteractiveMode, wanted.Exec.InteractiveMode)
	wanted.Exec.Args = keepArguments(old.Exec.Args, wanted.Exec.Args)
}

// refuseRelative returns an error if a plugin has a relative cache path, which a user has added: tokens would be stored
// in every directory in which kubectl runs.
func refuseRelative(wanted, made *clientcmdapi.Config) error {
	for name := range made.AuthInfos {
		user := wanted.AuthInfos[name]
		if user == nil || user.Exec == nil {
			continue
		}
		flags := parseFlags(user.Exec.Args)
		for _, flag := range []string{"--credential-cache", "--session-cache"} {
			path := flags[flag].value
			if path != "" && path != "~" && !strings.HasPrefix(path, "~/") && !filepath.IsAbs(path) {
				return fmt.Errorf("user %q has %s=%s, a path relative to the folder in which kubectl runs: use an absolute path",
					name, flag, path)
			}
		}
	}
	return nil
}

// decided are prefixes of arguments that the cluster and the flags of "get kubeconfig" determine, so that obsolete ones
// are removed.
var decided = []string{
	"--enable-concierge", "--concierge-", "--issuer", "--client-id", "--scopes", "--ca-bundle", "--token",
	"--request-audience", "--upstream-identity-provider-",
}

// keepArguments returns the wanted arguments of a plugin, with arguments that users have added to the old ones.
func keepArguments(old, wanted []string) []string {
	at := slices.Index(old, "login")
	if at < 0 || at+1 >= len(old) || len(wanted) < 2 || old[at+1] != wanted[1] {
		return wanted
	}
	all := slices.Clone(wanted)
	for i := at + 2; i < len(old); i++ {
		one := old[i : i+1]
		name, _, joined := strings.Cut(old[i], "=")
		if !joined && i+1 < len(old) && !strings.HasPrefix(old[i+1], "-") {
			one = old[i : i+2]
			i++
		}
		known := slices.ContainsFunc(wanted, func(arg string) bool { return arg == name || strings.HasPrefix(arg, name+"=") })
		ours := slices.ContainsFunc(decided, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if strings.HasPrefix(name, "--") && !known && !ours {
			all = append(all, one...)
		}
	}
	if same := slices.Sorted(slices.Values(all)); slices.Equal(same, slices.Sorted(slices.Values(old))) {
		return old
	}
	return all
}
