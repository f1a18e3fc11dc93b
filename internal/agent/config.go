package agent

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

// Config is the agent's configuration. Its YAML form is the file that --config names; the keys are Pinniped's, so
// that its ConfigMap works unchanged. Keys that only concern parts this agent does not have are accepted and
// ignored: see ignoredKeys.
type Config struct {
	APIGroupSuffix                             string            `json:"apiGroupSuffix" mapstructure:"apiGroupSuffix"`
	AggregatedAPIServerPort                    int32             `json:"aggregatedAPIServerPort" mapstructure:"aggregatedAPIServerPort"`
	AggregatedAPIServerDisableAdmissionPlugins []string          `json:"aggregatedAPIServerDisableAdmissionPlugins,omitempty" mapstructure:"aggregatedAPIServerDisableAdmissionPlugins"`
	ImpersonationProxyServerPort               int32             `json:"impersonationProxyServerPort" mapstructure:"impersonationProxyServerPort"`
	Names                                      NamesConfig       `json:"names" mapstructure:"names"`
	Labels                                     map[string]string `json:"labels,omitempty" mapstructure:"-"`
	Log                                        LogConfig         `json:"log" mapstructure:"log"`
	Audit                                      AuditConfig       `json:"audit" mapstructure:"audit"`
	Metrics                                    MetricsConfig     `json:"metrics" mapstructure:"metrics"`
	ShutdownDelay                              string            `json:"shutdownDelay" mapstructure:"shutdownDelay"`
	Work                                       WorkConfig        `json:"work" mapstructure:"work"`
	SelfCheckInterval                          string            `json:"selfCheckInterval" mapstructure:"selfCheckInterval"`
	CABundleHandOver                           string            `json:"caBundleHandOver" mapstructure:"caBundleHandOver"` // enabled or disabled
	CredentialLifetime                         string            `json:"credentialLifetime" mapstructure:"credentialLifetime"`
	UserAccountsNamespace                      string            `json:"userAccountsNamespace" mapstructure:"userAccountsNamespace"`
	ClusterSigner                              string            `json:"clusterSigner" mapstructure:"clusterSigner"` // enabled or disabled
	Discovery                                  DiscoveryConfig   `json:"discovery" mapstructure:"discovery"`
	AccessReviews                              ReviewConfig      `json:"accessReviews" mapstructure:"accessReviews"`
	Limits                                     LimitsConfig      `json:"limits" mapstructure:"limits"`
}

// NamesConfig names the objects that the agent reads and makes in its namespace.
type NamesConfig struct {
	ServingCertificateSecret          string `json:"servingCertificateSecret" mapstructure:"servingCertificateSecret"`
	CredentialIssuer                  string `json:"credentialIssuer" mapstructure:"credentialIssuer"`
	APIService                        string `json:"apiService" mapstructure:"apiService"`
	ImpersonationLoadBalancerService  string `json:"impersonationLoadBalancerService" mapstructure:"impersonationLoadBalancerService"`
	ImpersonationClusterIPService     string `json:"impersonationClusterIPService" mapstructure:"impersonationClusterIPService"`
	ImpersonationTLSCertificateSecret string `json:"impersonationTLSCertificateSecret" mapstructure:"impersonationTLSCertificateSecret"`
	ImpersonationCACertificateSecret  string `json:"impersonationCACertificateSecret" mapstructure:"impersonationCACertificateSecret"`
	ImpersonationSignerSecret         string `json:"impersonationSignerSecret" mapstructure:"impersonationSignerSecret"`
	ImpersonationLastGoodSecret       string `json:"impersonationLastGoodSecret" mapstructure:"impersonationLastGoodSecret"`
	CredentialIssuerRecordSecret      string `json:"credentialIssuerRecordSecret" mapstructure:"credentialIssuerRecordSecret"`
	ImpersonationProxyServiceAccount  string `json:"impersonationProxyServiceAccount" mapstructure:"impersonationProxyServiceAccount"`
	LeaderElectionLease               string `json:"leaderElectionLease" mapstructure:"leaderElectionLease"`
	UserAccountsServiceAccount        string `json:"userAccountsServiceAccount" mapstructure:"userAccountsServiceAccount"`
}

// LogConfig says what is logged, and how.
type LogConfig struct {
	Level  string `json:"level" mapstructure:"level"`   // "" (the same as info), info, debug, trace, all
	Format string `json:"format" mapstructure:"format"` // "" (the same as json), json, text
}

// AuditConfig says what stands in the audit lines of the log, and whether requests are logged in an audit log of
// their own.
type AuditConfig struct {
	LogUsernamesAndGroups string `json:"logUsernamesAndGroups" mapstructure:"logUsernamesAndGroups"` // enabled or disabled
	PolicyFile            string `json:"policyFile,omitempty" mapstructure:"policyFile"`
	LogPath               string `json:"logPath,omitempty" mapstructure:"logPath"` // "-" is the standard output
	LogMaxSize            int    `json:"logMaxSize" mapstructure:"logMaxSize"`     // megabytes
	LogMaxBackup          int    `json:"logMaxBackup" mapstructure:"logMaxBackup"` // files
	LogMaxAge             int    `json:"logMaxAge" mapstructure:"logMaxAge"`       // days
}

// MetricsConfig says where metrics are served, and who gets profiles there.
type MetricsConfig struct {
	Address string `json:"address" mapstructure:"address"` // host:port, or off
	Pprof   string `json:"pprof" mapstructure:"pprof"`     // disabled, local, anyone
}

// WorkConfig says how much of the work that clients of the impersonation proxy cause goes on at a time.
type WorkConfig struct {
	AccessReviews int `json:"accessReviews" mapstructure:"accessReviews"`
	TokenReviews  int `json:"tokenReviews" mapstructure:"tokenReviews"`
	Logins        int `json:"logins" mapstructure:"logins"`
	PerConnection int `json:"perConnection" mapstructure:"perConnection"`
	// RequestsPerUser is about requests that are at the API server, and no streams.
	RequestsPerUser int `json:"requestsPerUser" mapstructure:"requestsPerUser"`
}

// ReviewConfig says for how long the impersonation proxy uses an answer of the API server about a user's permission
// again.
type ReviewConfig struct {
	AllowTTL string `json:"allowTTL" mapstructure:"allowTTL"`
	DenyTTL  string `json:"denyTTL" mapstructure:"denyTTL"`
}

// DiscoveryConfig says how clients reach the API server.
type DiscoveryConfig struct {
	URL string `json:"url,omitempty" mapstructure:"url"`
}

// DefaultAppName begins the names of all objects unless the configuration says otherwise.
const DefaultAppName = "pinniped-concierge"

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
		"enabled or disabled: whether the proxy shows everybody the CA bundle that it is advertised with, for \"pinniped kubeconfig rotate --fleet\"",
		"enabled",
	},
	{
		"work.requestsPerUser",
		"work-requests-per-user",
		"how many requests of one user, streams apart, the proxy sends on at a time, 1 to 1000; the others wait",
		"16",
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

// ignoredKeys are keys of Pinniped's file for parts that this agent does not have: it runs no pods on control-plane
// nodes, renews its own certificates by fractions of their life, and always offers the same TLS ciphers.
var ignoredKeys = []string{
	"api", "kubecertagent", "tls",
	"names.agentserviceaccount", "names.impersonationproxylegacysecret",
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

// LoadConfig reads the configuration: flags over PINNIPED_AGENT_* over the file (none when path is empty) over
// defaults. Unknown keys and values out of range are errors.
func LoadConfig(path string, flags *pflag.FlagSet) (*Config, error) {
	v := viper.New()
	v.SetConfigType("yaml")
	var labels map[string]string
	if path != "" {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
		if err := v.ReadConfig(strings.NewReader(string(content))); err != nil {
			return nil, fmt.Errorf("reading configuration %q: %w", path, err)
		}
		if labels, err = readLabels(content); err != nil {
			return nil, fmt.Errorf("reading configuration %q: %w", path, err)
		}
		if err := checkKeys(v.AllKeys()); err != nil {
			return nil, fmt.Errorf("reading configuration %q: %w", path, err)
		}
	}
	for _, knob := range knobs {
		v.SetDefault(knob.key, knob.value)
		if err := v.BindEnv(knob.key, envName(knob.key)); err != nil {
			return nil, fmt.Errorf("binding %s: %w", envName(knob.key), err)
		}
		if flag := flags.Lookup(knob.flag); flag != nil && flag.Changed {
			v.Set(knob.key, flag.Value.String())
		}
	}
	config := &Config{}
	if err := v.Unmarshal(config); err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	config.Labels = labels
	if err := errors.Join(config.validate(), checkNames(v.GetString)); err != nil {
		return nil, err
	}
	return config, nil
}

// readLabels reads the labels apart, because viper turns the keys of maps to lower case.
func readLabels(content []byte) (map[string]string, error) {
	var file struct {
		Labels map[string]string `json:"labels"`
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		return nil, err
	}
	return file.Labels, nil
}

func checkKeys(keys []string) error {
	known := []string{"aggregatedapiserverdisableadmissionplugins", "labels"}
	for _, knob := range knobs {
		known = append(known, strings.ToLower(knob.key))
	}
	known = append(known, ignoredKeys...)
	var unknown []string
	for _, key := range keys {
		if !slices.ContainsFunc(known, func(k string) bool { return key == k || strings.HasPrefix(key, k+".") }) {
			unknown = append(unknown, key)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return fmt.Errorf("unknown keys: %s", strings.Join(unknown, ", "))
	}
	return nil
}

// checkNames refuses names that no object can have: with one of those the agent would wait for ever, or make what
// it cannot make.
func checkNames(value func(key string) string) error {
	var missing []string
	var problems []error
	for _, knob := range knobs {
		key, ok := strings.CutPrefix(knob.key, "names.")
		if !ok {
			continue
		}
		name, check := value(knob.key), validation.IsDNS1123Subdomain
		if strings.HasSuffix(key, "Service") {
			check = validation.IsDNS1123Label
		}
		if name == "" {
			missing = append(missing, key)
			continue
		}
		for _, problem := range check(name) {
			problems = append(problems, fmt.Errorf("%s is %q: %s", knob.key, name, problem))
		}
	}
	if len(missing) > 0 {
		problems = append(problems, fmt.Errorf("validate names: missing required names: %s", strings.Join(missing, ", ")))
	}
	return errors.Join(problems...)
}

func (c *Config) validate() error {
	var problems []error
	if err := apis.ValidateGroupSuffix(c.APIGroupSuffix); err != nil {
		problems = append(problems, fmt.Errorf("validate apiGroupSuffix: %w", err))
	}
	for key, port := range map[string]int32{
		"aggregatedAPIServerPort": c.AggregatedAPIServerPort, "impersonationProxyServerPort": c.ImpersonationProxyServerPort,
	} {
		if port < 1024 || port > 65535 {
			problems = append(problems, fmt.Errorf("%s is %d: must be within range 1024 to 65535", key, port))
		}
	}
	if delay, err := time.ParseDuration(c.ShutdownDelay); err != nil || delay < 0 {
		problems = append(problems, fmt.Errorf("shutdownDelay is %q: write a duration such as 10s", c.ShutdownDelay))
	}
	for key, ttl := range map[string]string{
		"accessReviews.allowTTL": c.AccessReviews.AllowTTL, "accessReviews.denyTTL": c.AccessReviews.DenyTTL,
	} {
		if d, err := time.ParseDuration(ttl); err != nil || d < time.Millisecond || d > 10*time.Minute {
			problems = append(problems, fmt.Errorf("%s is %q: write a duration from 1ms to 10m, such as 10s", key, ttl))
		}
	}
	for key, n := range map[string]int{
		"work.accessReviews": c.Work.AccessReviews, "work.tokenReviews": c.Work.TokenReviews,
		"work.logins": c.Work.Logins, "work.perConnection": c.Work.PerConnection,
		"work.requestsPerUser": c.Work.RequestsPerUser,
	} {
		if n < 1 || n > 1000 {
			problems = append(problems, fmt.Errorf("%s is %d: must be within range 1 to 1000", key, n))
		}
	}
	if !slices.Contains([]string{"", "info", "debug", "trace", "all"}, c.Log.Level) {
		problems = append(problems, fmt.Errorf("log.level is %q: use info, debug, trace or all", c.Log.Level))
	}
	if !slices.Contains([]string{"", "json", "text"}, c.Log.Format) {
		problems = append(problems, fmt.Errorf("log.format is %q: use json or text", c.Log.Format))
	}
	if life, err := time.ParseDuration(c.CredentialLifetime); err != nil || life < time.Minute || life > 24*time.Hour {
		problems = append(
			problems,
			fmt.Errorf("credentialLifetime is %q: write a duration from 1m to 24h, such as 5m", c.CredentialLifetime),
		)
	}
	if !slices.Contains([]string{enabled, disabled}, c.CABundleHandOver) {
		problems = append(
			problems,
			fmt.Errorf("caBundleHandOver is %q: use %s or %s", c.CABundleHandOver, enabled, disabled),
		)
	}
	if !slices.Contains([]string{enabled, disabled}, c.ClusterSigner) {
		problems = append(
			problems,
			fmt.Errorf("clusterSigner is %q: use %s or %s", c.ClusterSigner, enabled, disabled),
		)
	}
	if at, err := url.Parse(
		c.Discovery.URL,
	); c.Discovery.URL != "" &&
		(err != nil || at.Scheme != "https" || at.Host == "") {
		problems = append(
			problems,
			fmt.Errorf("discovery.url is %q: write a URL such as https://kube.example.com:6443", c.Discovery.URL),
		)
	}
	if interval, err := time.ParseDuration(c.SelfCheckInterval); err != nil || interval < time.Second {
		problems = append(
			problems,
			fmt.Errorf("selfCheckInterval is %q: write a duration of a second or more, such as 10m", c.SelfCheckInterval),
		)
	}
	if _, err := c.Limits.limits(); err != nil {
		problems = append(problems, err)
	}
	problems = append(problems, c.Metrics.validate()...)
	problems = append(problems, c.Audit.validate()...)
	for key, value := range c.Labels {
		for _, problem := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
			problems = append(problems, fmt.Errorf("label %q: %s", key, problem))
		}
	}
	return errors.Join(problems...)
}

// AppLabel returns the value of the label "app" on the agent's pods.
func (c *Config) AppLabel() string {
	if app := c.Labels["app"]; app != "" {
		return app
	}
	return DefaultAppName
}

// shutdownDelay returns ShutdownDelay, which validate has checked.
func (c *Config) shutdownDelay() time.Duration {
	delay, _ := time.ParseDuration(c.ShutdownDelay)
	return delay
}

// ttls returns the lifetimes of allowed and denied answers, which validate has checked.
func (c ReviewConfig) ttls() (allow, deny time.Duration) {
	allow, _ = time.ParseDuration(c.AllowTTL)
	deny, _ = time.ParseDuration(c.DenyTTL)
	return allow, deny
}

// credentialLifetime returns CredentialLifetime, which validate has checked.
func (c *Config) credentialLifetime() time.Duration {
	life, _ := time.ParseDuration(c.CredentialLifetime)
	return life
}

// selfCheckInterval returns SelfCheckInterval, which validate has checked.
func (c *Config) selfCheckInterval() time.Duration {
	interval, _ := time.ParseDuration(c.SelfCheckInterval)
	return interval
}

// Print writes the configuration as YAML, in the form of the file.
func (c *Config) Print(out io.Writer) error {
	content, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("encoding the configuration: %w", err)
	}
	_, err = out.Write(content)
	return err
}
