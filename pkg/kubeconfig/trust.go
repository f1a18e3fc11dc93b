package kubeconfig

import (
	"fmt"
	"slices"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Trust is one place in a kubeconfig that leads to an endpoint, and what the endpoint is verified with there.
type Trust struct {
	// Where names the place: a cluster, or the user whose credential plugin goes there.
	Where string
	// Kind is "cluster" or "user", and Name the name of that entry in the kubeconfig.
	Kind, Name string
	// Server is the URL that the place leads to.
	Server string
	// Host is the name that the server's certificate must cover.
	Host string
	// ProxyURL is the HTTP proxy that a cluster names for the way there.
	ProxyURL string
	// Uncertain is true when it is not known whether the place leads to the endpoint: a wildcard of the certificate
	// covers its name, and other servers may have such a name as well.
	Uncertain bool
	// CABundle is PEM; when it is empty, the system roots count.
	CABundle []byte
	// Insecure is true when nothing is verified there at all.
	Insecure bool
	// Err says why the CA bundle is not known.
	Err error
}

// Trusts returns every place of config that leads to endpoint: clusters with its address, and users whose credential
// plugin is a "pinniped login" that goes there, in the order of their names. Rotate changes exactly these. Files that
// config refers to are read; their paths must be absolute, or relative to the working directory.
func Trusts(config *clientcmdapi.Config, endpoint Endpoint) []Trust {
	return trusts(places(config, endpoint))
}

// AllTrusts is Trusts for every server: all clusters, and all users whose credential plugin is a "pinniped login" that
// exchanges its credential.
func AllTrusts(config *clientcmdapi.Config) []Trust { return trusts(allPlaces(config)) }

func trusts(places []place) []Trust {
	var found []Trust
	for _, one := range places {
		trust := one.trust()
		if one.file != "" {
			if trust.CABundle, trust.Err = ReadNamed(one.file); trust.Err != nil {
				trust.Err = fmt.Errorf("reading the CA bundle of %s: %w", trust.Where, trust.Err)
			}
		}
		found = append(found, trust)
	}
	return found
}

// trust returns what is known of a place without reading a file.
func (p place) trust() Trust {
	return Trust{
		Where: fmt.Sprintf("%s %q", p.kind, p.name), Kind: p.kind, Name: p.name, Server: p.server, Host: p.host,
		ProxyURL: p.proxy, Uncertain: p.lead == perhapsHere, CABundle: p.bundle, Insecure: p.insecure, Err: p.err,
	}
}

// Leads says whether a place certainly leads to the endpoint.
func (e Endpoint) Leads(trust Trust) bool {
	at, _ := parseServer(trust.Server)
	serverName := trust.Host
	if canonicalHost(serverName) == at.host {
		serverName = ""
	}
	return e.leads(trust.Server, serverName) == leadsHere
}

// elsewhere are credential plugins that get their credential from somebody else than the impersonation proxy.
var elsewhere = []string{"aws", "aws-iam-authenticator", "gke-gcloud-auth-plugin", "kubelogin", "kubectl-oidc_login"}

// UnknownPlugin returns the program that a user logs in with, when it is not known where that program goes and what it
// trusts there: it is no "pinniped login", and none of the usual credential plugins. Otherwise it returns "".
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
