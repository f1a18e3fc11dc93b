package agent

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

// knobs are the keys of the file that have a flag and an environment variable as well: every one that is a single
// value. A flag wins over the variable, that over the file, that over the default.
var knobs = append([]knob{
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
	{"audit.logMaxSize", "audit-log-maxsize", "megabytes after which that file is rotated", "100"},
	{"audit.logMaxBackup", "audit-log-maxbackup", "how many old files to keep; 0 keeps all", "10"},
	{"audit.logMaxAge", "audit-log-maxage", "days to keep old files; 0 keeps them whatever their age", "0"},
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
		"accessReviews.denyTTL",
		"access-reviews-deny-ttl",
		"how long a permission given to a user may not work yet, 1ms to 10m",
		"500ms",
	},
	{
		"work.accessReviews",
		"work-access-reviews",
		"how many SubjectAccessReviews the proxy asks the API server for at a time, 1 to 1000",
		"32",
	},
	{
		"work.tokenReviews",
		"work-token-reviews",
		"how many TokenReviews the proxy asks the API server for at a time, 1 to 1000",
		"16",
	},
	{"work.logins", "work-logins", "how many TokenCredentialRequests the proxy sends on at a time, 1 to 1000", "8"},
	{
		"work.perConnection",
		"work-per-connection",
		"how many TokenReviews, and how many TokenCredentialRequests, one connection may wait for, 1 to 1000",
		"16",
	},
	{
		"caBundleHandOver",
		"ca-bundle-hand-over",
		"enabled or disabled: whether the proxy shows everybody the CA bundle that it is advertised with, for " +
			"\"pinniped kubeconfig rotate --fleet\"",
		"enabled",
	},
	{
		"handedOutMemory",
		"handed-out-memory",
		"how long clients are expected that have what was advertised, after it was advertised last; 8760h is a year",
		"8760h",
	},
	{
		"work.requests",
		"work-requests",
		"how many requests of all users together the proxy sends on at a time, 1 to 1000; the others wait",
		"128",
	},
	{
		"work.longAnswers",
		"work-long-answers",
		"how many of those requests may have long answers, such as lists of hundreds of objects, 1 to 1000",
		"8",
	},
	{
		"work.requestsPerUser",
		"work-requests-per-user",
		"how many requests of one user, streams apart, the proxy sends on at a time, 1 to 1000; the others wait",
		"16",
	},
	{
		"work.longAnswersPerUser",
		"work-long-answers-per-user",
		"how many of those requests may have long answers, such as lists of hundreds of objects, 1 to 1000",
		"4",
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
		"userAccountsNamespace",
		"user-accounts-namespace",
		"namespace of users' service accounts, for the strategy ServiceAccountToken: as deploy/serviceaccounttokens makes it",
		DefaultAppName + "-users",
	},
	{
		"selfCheckInterval",
		"self-check-interval",
		"how often to check that the upstream credential can do nothing but impersonate, such as 10m",
		"10m",
	},
	{
		"names.servingCertificateSecret",
		"name-serving-certificate-secret",
		"Secret with the certificate of the Concierge APIs",
		DefaultAppName + "-api-tls-serving-certificate",
	},
	{"names.credentialIssuer", "name-credential-issuer", "CredentialIssuer to follow", DefaultAppName + "-config"},
	{"names.apiService", "name-api-service", "Service in front of the Concierge APIs", DefaultAppName + "-api"},
	{
		"names.impersonationLoadBalancerService",
		"name-load-balancer-service",
		"Service of type LoadBalancer to make",
		DefaultAppName + "-impersonation-proxy-load-balancer",
	},
	{
		"names.impersonationClusterIPService",
		"name-cluster-ip-service",
		"Service of type ClusterIP to make",
		DefaultAppName + "-impersonation-proxy-cluster-ip",
	},
	{
		"names.impersonationTLSCertificateSecret",
		"name-tls-certificate-secret",
		"Secret for the generated serving certificate",
		DefaultAppName + "-impersonation-proxy-tls-serving-certificate",
	},
	{
		"names.impersonationCACertificateSecret",
		"name-ca-certificate-secret",
		"Secret for the generated serving CA",
		DefaultAppName + "-impersonation-proxy-ca-certificate",
	},
	{
		"names.impersonationSignerSecret",
		"name-signer-secret",
		"Secret for the CA of client certificates",
		DefaultAppName + "-impersonation-proxy-signer-ca-certificate",
	},
	{
		"names.impersonationLastGoodSecret",
		"name-last-good-secret",
		"Secret for a copy of the external certificate in service",
		DefaultAppName + "-impersonation-proxy-last-good-certificate",
	},
	{
		"names.credentialIssuerRecordSecret",
		"name-credential-issuer-record-secret",
		"Secret for the CredentialIssuer as it was last, from which a deleted one is made again",
		DefaultAppName + "-credential-issuer-record",
	},
	{
		"names.handedOutConfigMap",
		"name-handed-out-config-map",
		"ConfigMap for what clients were told about the impersonation proxy",
		DefaultAppName + "-handed-out",
	},
	{
		"names.impersonationProxyServiceAccount",
		"name-impersonation-proxy-service-account",
		"ServiceAccount that impersonates",
		DefaultAppName + "-impersonation-proxy",
	},
	{
		"names.leaderElectionLease",
		"name-leader-election-lease",
		"Lease by which the leading replica is chosen",
		DefaultAppName,
	},
	{
		"names.userAccountsServiceAccount",
		"name-user-accounts-service-account",
		"ServiceAccount that manages users' service accounts",
		DefaultAppName + "-user-accounts",
	},
}, limitKnobs()...)

type knob struct{ key, flag, usage, value string }

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
			knob.value,
			fmt.Sprintf("%s (%s in the file, %s in the environment)", knob.usage, knob.key, envName(knob.key)),
		)
	}
}

func envName(key string) string {
	var name strings.Builder
	name.WriteString("PINNIPED_AGENT_")
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
