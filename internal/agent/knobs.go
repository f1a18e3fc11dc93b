package agent

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

// knobs are the keys of the file that have a flag and an environment variable as well: every one that is a single
// value. A flag wins over the variable, that over the file, that over the default. The default of a name begins with
// appName.
var knobs = []knob{
	{"appName", "app-name", "what the names of all objects begin with that have no other name", DefaultAppName},
	{"apiGroupSuffix", "api-group-suffix", "end of the API groups' names", apis.DefaultGroupSuffix},
	{"aggregatedAPIServerPort", "aggregated-api-server-port", "port of the Concierge APIs, 1024 to 65535", "10250"},
	{
		"impersonationProxyServerPort",
		"impersonation-proxy-server-port",
		"port of the impersonation proxy, 1024 to 65535",
		"8444",
	},
	{"log.level", "log-level", "info, debug, trace or all", "info"},
	{"log.format", "log-format", "json or text", "json"},
	{
		"audit.logUsernamesAndGroups",
		"audit-log-usernames-and-groups",
		"enabled or disabled: whether audit lines show names",
		"disabled",
	},
	{
		"audit.policyFile",
		"audit-policy-file",
		"audit policy (kind Policy of audit.k8s.io/v1) for an audit log of requests to the proxy; empty for none",
		"",
	},
	{"audit.logPath", "audit-log-path", "file for that audit log; - is the standard output", ""},
	{
		"metrics.address",
		"metrics-address",
		"where metrics are served, over plain HTTP: host:port, :port for all addresses, or off",
		"127.0.0.1:8446",
	},
	{
		"metrics.pprof",
		"metrics-pprof",
		"who gets profiles there, below /debug/pprof/: disabled, local (clients on the same machine) or anyone",
		"disabled",
	},
	{
		"shutdownDelay",
		"shutdown-delay",
		"how long to go on serving, no longer ready, after being told to stop, such as 10s",
		"0s",
	},
	{
		"accessReviews.allowTTL",
		"access-reviews-allow-ttl",
		"how long a permission taken from a user may still work, 1ms to 10m",
		"10s",
	},
	{
		"trustBundleEndpoint",
		"trust-bundle-endpoint",
		"enabled or disabled: whether the proxy shows everybody the CA bundle that it is advertised with, for " +
			"\"pinniped kubeconfig rotate --fleet\"",
		"enabled",
	},
	{
		"revisionRetention",
		"revision-retention",
		"how long a revision is assumed to be in use after it was last published; 8760h is a year",
		"8760h",
	},
	{
		"credentialLifetime",
		"credential-lifetime",
		"how long the client certificates work that users log in with, 1m to 24h",
		"5m",
	},
	{
		"clusterSigner",
		"cluster-signer",
		"enabled or disabled: whether users get certificates from the cluster's own signer where it answers; needs the " +
			"rights of deploy/clustersigner",
		"disabled",
	},
	{
		"discovery.url",
		"discovery-url",
		"URL of the API server for clients that log in with certificates of the cluster's own signer; empty for what " +
			"ConfigMap cluster-info in namespace kube-public says",
		"",
	},
	{
		"names.servingCertificateSecret",
		"name-serving-certificate-secret",
		"Secret with the certificate of the Concierge APIs",
		"-api-tls-serving-certificate",
	},
	{"names.credentialIssuer", "name-credential-issuer", "CredentialIssuer to follow", "-config"},
	{"names.apiService", "name-api-service", "Service in front of the Concierge APIs", "-api"},
	{
		"names.impersonationLoadBalancerService",
		"name-load-balancer-service",
		"Service of type LoadBalancer to make",
		"-impersonation-proxy-load-balancer",
	},
	{
		"names.impersonationClusterIPService",
		"name-cluster-ip-service",
		"Service of type ClusterIP to make",
		"-impersonation-proxy-cluster-ip",
	},
	{
		"names.impersonationTLSCertificateSecret",
		"name-tls-certificate-secret",
		"Secret for the generated serving certificate",
		"-impersonation-proxy-tls-serving-certificate",
	},
	{
		"names.impersonationCACertificateSecret",
		"name-ca-certificate-secret",
		"Secret for the generated serving CA",
		"-impersonation-proxy-ca-certificate",
	},
	{
		"names.impersonationSignerSecret",
		"name-signer-secret",
		"Secret for the CA of client certificates",
		"-impersonation-proxy-signer-ca-certificate",
	},
	{
		"names.impersonationProxyServiceAccount",
		"name-impersonation-proxy-service-account",
		"ServiceAccount that impersonates",
		"-impersonation-proxy",
	},
}

type knob struct{ key, flag, usage, value string }

// fileKeys are the keys that the file alone has.
var fileKeys = []string{"aggregatedAPIServerDisableAdmissionPlugins", "labels", "credentialIssuerSpec"}

// standard returns the default.
func (k knob) standard(appName string) string {
	if strings.HasPrefix(k.key, "names.") {
		return appName + k.value
	}
	return k.value
}

// IgnoredKeys are keys of Pinniped's file for parts that this agent does not have: it runs no pods on control-plane
// nodes, renews its own certificates by fractions of their life, and always offers the same TLS ciphers.
func IgnoredKeys() [][]string {
	return [][]string{
		{"api"},
		{"kubeCertAgent"},
		{"tls"},
		{"names", "agentServiceAccount"},
		{"names", "impersonationProxyLegacySecret"},
	}
}

// AddFlags adds a flag for each knob.
func AddFlags(flags *pflag.FlagSet) {
	for _, knob := range knobs {
		flags.String(
			knob.flag,
			knob.standard(DefaultAppName),
			fmt.Sprintf("%s (%s in the file, %s in the environment)", knob.usage, knob.key, envName(knob.key)),
		)
	}
}

const envPrefix = "PINNIPED_AGENT_"

func envName(key string) string {
	var name strings.Builder
	name.WriteString(envPrefix)
	for i, r := range key {
		upper := r >= 'A' && r <= 'Z'
		previousLower := i > 0 && key[i-1] >= 'a' && key[i-1] <= 'z'
		nextLower := i+1 < len(key) && key[i+1] >= 'a' && key[i+1] <= 'z'
		switch {
		case r == '.':
			name.WriteByte('_')
			continue
		case upper && (previousLower || nextLower && key[i-1] != '.'):
			name.WriteByte('_')
		}
		name.WriteRune(r)
	}
	return strings.ToUpper(name.String())
}
