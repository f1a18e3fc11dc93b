package kubeconfig

import (
	"fmt"
	"slices"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

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
