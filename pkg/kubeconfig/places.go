package kubeconfig

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// The flags of "pinniped login" that say where the credential is exchanged. They are the same in upstream Pinniped, and
// in other programs that embed its login.
const (
	endpointFlag = "--concierge-endpoint"
	bundleFlag   = "--concierge-ca-bundle-data"
)

// The environment variables of "pinniped exchange-credential", the credential plugin before "pinniped login".
const (
	endpointVariable = "PINNIPED_K8S_API_ENDPOINT"
	bundleVariable   = "PINNIPED_CA_BUNDLE"
)

// place is a Trust, whose CA bundle may still be in a file, with what Rotate needs to change it.
type place struct {
	Trust
	serverName string // the name that clients expect in the certificate, if it is not the host of the server
	lead       lead
	file       string // the file that contains the CA bundle

	// For a user: the index of the argument with the bundle (-1: none), and what precedes it in that argument. fixed
	// says why the bundle cannot be changed.
	argument int
	prefix   string
	fixed    string
}

const (
	kindCluster = "cluster"
	kindUser    = "user"
)

// places returns all places that lead, or may lead, to the endpoint: clusters, then users, sorted by name. It reads no
// file.
func places(config *clientcmdapi.Config, endpoint Endpoint) []place {
	var found []place
	for _, one := range allPlaces(config) {
		if one.lead = endpoint.leads(one.Server, one.serverName); one.lead == leadsElsewhere {
			continue
		}
		one.Uncertain = one.lead == perhapsHere
		if len(found) > 0 && one.Where == found[len(found)-1].Where {
			continue // another address in the same plugin's command line
		}
		found = append(found, one)
	}
	return found
}

// allPlaces returns all places that lead to any server: clusters, then users, sorted by name. A user is listed several
// times if its plugin's command line has several addresses. It reads no file.
func allPlaces(config *clientcmdapi.Config) []place {
	var found []place
	for _, name := range slices.Sorted(maps.Keys(config.Clusters)) {
		if cluster := config.Clusters[name]; cluster != nil {
			found = append(found, clusterPlace(name, cluster))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(config.AuthInfos)) {
		user := config.AuthInfos[name]
		if user == nil || user.Exec == nil {
			continue
		}
		all := hiddenPlaces(user.Exec)
		if one := pluginPlace(user.Exec); one != nil {
			all = []place{*one}
		}
		for _, one := range all {
			at, _ := parseServer(one.Server)
			one.Where, one.Kind, one.Name, one.Host = where(kindUser, name), kindUser, name, at.host
			found = append(found, one)
		}
	}
	return found
}

func where(kind, name string) string { return fmt.Sprintf("%s %q", kind, name) }

func clusterPlace(name string, cluster *clientcmdapi.Cluster) place {
	at, _ := parseServer(cluster.Server)
	one := place{serverName: cluster.TLSServerName, Trust: Trust{
		Where: where(kindCluster, name), Kind: kindCluster, Name: name, Server: cluster.Server,
		Host: cmp.Or(cluster.TLSServerName, at.host), ProxyURL: cluster.ProxyURL,
		CABundle: cluster.CertificateAuthorityData, Insecure: cluster.InsecureSkipTLSVerify,
	}}
	if len(one.CABundle) == 0 {
		one.file = cluster.CertificateAuthority
	}
	return one
}

// pluginPlace parses the arguments of a credential plugin, or the environment of a very old one. It returns nil for a
// plugin that exchanges nothing.
func pluginPlace(plugin *clientcmdapi.ExecConfig) *place {
	flags := parseFlags(plugin.Args)
	if at, ok := flags[endpointFlag]; ok {
		one := &place{Trust: Trust{Server: at.value}, argument: -1}
		data, given := flags[bundleFlag]
		switch {
		case given && data.index < 0:
			one.Err = fmt.Errorf("%s has no value", bundleFlag)
			one.fixed = "its credential plugin has " + bundleFlag + " without a value; recreate the kubeconfig"
		case given:
			one.argument, one.prefix = data.index, data.prefix
			if one.CABundle, one.Err = base64.StdEncoding.DecodeString(data.value); one.Err != nil {
				one.CABundle, one.Err = nil, fmt.Errorf("decoding %s: %w", bundleFlag, one.Err)
			}
		default:
			one.fixed = "its credential plugin has no " + bundleFlag + "; recreate the kubeconfig"
		}
		return one
	}
	if !slices.Contains(plugin.Args, "exchange-credential") {
		return nil
	}
	one := &place{
		argument: -1,
		fixed:    "its credential plugin is from a very old Pinniped and gets the CA bundle from " + bundleVariable + "; recreate the kubeconfig",
	}
	for _, variable := range plugin.Env {
		switch variable.Name {
		case endpointVariable:
			one.Server = variable.Value
		case bundleVariable:
			one.CABundle = []byte(variable.Value)
		}
	}
	return one
}

// hiddenPlaces finds the addresses of a plugin whose flags are within one argument, such as a shell command line. Their
// CA bundle cannot be determined.
func hiddenPlaces(plugin *clientcmdapi.ExecConfig) []place {
	var found []place
	for _, argument := range plugin.Args {
		_, rest, ok := strings.Cut(argument, endpointFlag)
		if !ok {
			continue
		}
		words := strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune(" \t\n='\";&|", r) })
		if len(words) > 0 {
			found = append(found, place{
				Trust: Trust{Server: words[0], Err: errors.New("its flags are in one argument of another program")}, argument: -1,
				fixed: "the flags of its credential plugin are in one argument of another program; change that by hand",
			})
		}
	}
	return found
}

// flagValue is the value of a flag, and the index of its argument: -1 for none.
type flagValue struct {
	value  string
	index  int
	prefix string
}

// withoutValue are the flags of "pinniped login" without a separate value, withValue those with one.
var (
	withoutValue = []string{
		"--enable-concierge",
		"--skip-browser",
		"--skip-listen",
		"--debug-session-cache",
		followFlag,
		"--help",
	}
	withValue = []string{
		endpointFlag,
		bundleFlag,
		"--concierge-api-group-suffix",
		"--concierge-authenticator-name",
		"--concierge-authenticator-type",
		"--concierge-mode",
		"--concierge-namespace",
		"--credential-cache",
		"--token",
		"--token-env",
		"--issuer",
		"--client-id",
		"--scopes",
		"--listen-port",
		"--ca-bundle",
		"--ca-bundle-data",
		"--session-cache",
		"--request-audience",
		"--upstream-identity-provider-name",
		"--upstream-identity-provider-type",
		"--upstream-identity-provider-flow",
	}
)

// parseFlags parses arguments like pflag: --flag=value or --flag value, the last one counts, and "--" ends them.
// Another program may precede "login", with its own flags and "--". The argument after an unknown flag is its value,
// unless it looks like a flag.
func parseFlags(args []string) map[string]flagValue {
	found := map[string]flagValue{}
	for i := max(slices.Index(args, "login"), 0); i < len(args); i++ {
		name, value, together := strings.Cut(args[i], "=")
		switch {
		case args[i] == "--":
			return found
		case !strings.HasPrefix(name, "--"):
		case together:
			found[name] = flagValue{value: value, index: i, prefix: name + "="}
		case slices.Contains(withoutValue, name):
		case i+1 == len(args):
			found[name] = flagValue{index: -1}
		case slices.Contains(withValue, name) || !strings.HasPrefix(args[i+1], "-"):
			i++
			found[name] = flagValue{value: args[i], index: i}
		}
	}
	return found
}

// planned is the entry of a place in the result, and its new CA bundle.
type planned struct {
	Entry
	place place
	to    []byte
}

// plan decides how to make a place trust the bundle, and changes config accordingly.
func (p place) plan(config *clientcmdapi.Config, target Target) planned {
	bundle := target.CABundle
	made := planned{Entry: Entry{Kind: p.Kind, Name: p.Name, Outcome: Rotated}, place: p, to: bundle}
	skip := func(code SkipCode, format string, args ...any) planned {
		made.Outcome, made.Code, made.Reason = Skipped, code, fmt.Sprintf(format, args...)
		return made
	}
	switch {
	case p.Uncertain:
		return skip(
			SkipUncertain,
			"only a wildcard of the certificate covers %q, so this host may be another endpoint; if it is the same "+
				"endpoint, pass its URL with --endpoint",
			p.Host,
		)
	case p.Insecure:
		return skip(SkipInsecure, "it has insecure-skip-tls-verify")
	case p.fixed != "" && (p.Err != nil || !bytes.Equal(p.CABundle, bundle)):
		return skip(SkipPlugin, "%s", p.fixed)
	case p.file != "":
		return skip(SkipCAFile, "it reads its CA bundle from file %q, which other kubeconfigs may share", p.file)
	case p.Err == nil && bytes.Equal(p.CABundle, bundle):
		made.Outcome = Current
		return made
	}
	if target.Accepts != nil {
		if err := target.Accepts(p.Trust); err != nil {
			return skip(SkipNotAccepted, "%s", err.Error())
		}
	}
	if p.Kind == kindUser {
		config.AuthInfos[p.Name].Exec.Args[p.argument] = p.prefix + base64.StdEncoding.EncodeToString(bundle)
		return made
	}
	cluster := config.Clusters[p.Name]
	if len(bundle) == 0 && cluster.CertificateAuthority != "" {
		return skip(
			SkipCAFile,
			"without its own CA bundle, it would use the CA bundle in file %q",
			cluster.CertificateAuthority,
		)
	}
	cluster.CertificateAuthorityData = append([]byte(nil), bundle...) // nil if it is empty
	return made
}

// Trust is a place in a kubeconfig that leads to an endpoint, and how the endpoint is verified there.
type Trust struct {
	// Where describes the place: a cluster, or the user whose credential plugin connects to the endpoint.
	Where string
	// Kind is "cluster" or "user", and Name the name of that entry in the kubeconfig.
	Kind, Name string
	// Server is the URL of the server.
	Server string
	// Host is the name that the server's certificate must cover.
	Host string
	// ProxyURL is the cluster's HTTP proxy.
	ProxyURL string
	// Uncertain is true if the place may lead to another server, because only a wildcard of the certificate covers its
	// name.
	Uncertain bool
	// CABundle is PEM; it is empty for the system roots.
	CABundle []byte
	// Insecure is true if nothing is verified.
	Insecure bool
	// Err is why the CA bundle is unknown.
	Err error
}

// Trusts returns all places of config that lead to endpoint, sorted by name: clusters, and users whose credential
// plugin is "pinniped login". Rotate changes exactly these. Trusts reads files that config names; their paths must be
// absolute, or relative to the working directory.
func Trusts(config *clientcmdapi.Config, endpoint Endpoint) []Trust {
	return trusts(places(config, endpoint))
}

// AllTrusts is Trusts for every server: all clusters, and all users whose credential plugin is a "pinniped login" that
// exchanges its credential.
func AllTrusts(config *clientcmdapi.Config) []Trust { return trusts(allPlaces(config)) }

func trusts(places []place) []Trust {
	var found []Trust
	for _, one := range places {
		trust := one.Trust
		if one.file != "" {
			if trust.CABundle, trust.Err = ReadNamed(one.file); trust.Err != nil {
				trust.Err = fmt.Errorf("reading the CA bundle of %s: %w", trust.Where, trust.Err)
			}
		}
		found = append(found, trust)
	}
	return found
}

// Leads reports whether a place certainly leads to the endpoint.
func (e Endpoint) Leads(trust Trust) bool {
	at, _ := parseServer(trust.Server)
	serverName := trust.Host
	if canonicalHost(serverName) == at.host {
		serverName = ""
	}
	return e.leads(trust.Server, serverName) == leadsHere
}

// elsewhere are credential plugins that do not connect to the impersonation proxy.
var elsewhere = []string{"aws", "aws-iam-authenticator", "gke-gcloud-auth-plugin", "kubelogin", "kubectl-oidc_login"}

// UnknownPlugin returns the program that a user logs in with, if it is unknown where that connects and what it trusts:
// it is neither "pinniped login" nor a common credential plugin. Otherwise it returns "".
func UnknownPlugin(user *clientcmdapi.AuthInfo) string {
	if user == nil || user.Exec == nil || RunsPinniped(user) {
		return ""
	}
	program := user.Exec.Command
	base := strings.TrimSuffix(program[strings.LastIndexAny(program, `/\`)+1:], ".exe")
	switch {
	case pluginPlace(user.Exec) != nil, len(hiddenPlaces(user.Exec)) > 0, slices.Contains(elsewhere, base):
		return ""
	case base == "kubectl" && slices.Contains(user.Exec.Args, "oidc-login"):
		return ""
	}
	return program
}
