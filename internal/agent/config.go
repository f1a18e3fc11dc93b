package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
	k8syaml "sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/metrics"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Config is the agent's configuration. Its YAML form is the file of --config. The keys are Pinniped's, so that its
// ConfigMap works unchanged.
type Config struct {
	AppName                                    string            `json:"appName"`
	APIGroupSuffix                             string            `json:"apiGroupSuffix"`
	AggregatedAPIServerPort                    int32             `json:"aggregatedAPIServerPort"`
	AggregatedAPIServerDisableAdmissionPlugins []string          `json:"aggregatedAPIServerDisableAdmissionPlugins,omitempty"`
	ImpersonationProxyServerPort               int32             `json:"impersonationProxyServerPort"`
	Names                                      NamesConfig       `json:"names"`
	Labels                                     map[string]string `json:"labels,omitempty"`
	Log                                        LogConfig         `json:"log"`
	Audit                                      AuditConfig       `json:"audit"`
	Metrics                                    MetricsConfig     `json:"metrics"`
	ShutdownDelay                              string            `json:"shutdownDelay"`
	TrustBundleEndpoint                        string            `json:"trustBundleEndpoint"` // enabled or disabled
	RevisionRetention                          string            `json:"revisionRetention"`
	CredentialLifetime                         string            `json:"credentialLifetime"`
	ClusterSigner                              string            `json:"clusterSigner"` // enabled or disabled
	Discovery                                  DiscoveryConfig   `json:"discovery"`
	AccessReviews                              ReviewConfig      `json:"accessReviews"`

	// CredentialIssuerSpec is the spec of the CredentialIssuer that the agent creates when it first starts and there is
	// none. Without it, none is created.
	CredentialIssuerSpec *configv1alpha1.CredentialIssuerSpec `json:"credentialIssuerSpec,omitempty"`

	// Pinniped's keys for features that this agent does not have. They are accepted and ignored: it runs no pods on
	// control plane nodes, renews its own certificates at a fraction of their lifetime, and has a fixed list of
	// ciphers.
	API           any `json:"api,omitempty"`
	KubeCertAgent any `json:"kubeCertAgent,omitempty"`
	TLS           any `json:"tls,omitempty"`
}

// NamesConfig names objects that the agent reads and creates in its namespace and that a Pinniped Concierge has, too.
type NamesConfig struct {
	ServingCertificateSecret          string `json:"servingCertificateSecret"`
	CredentialIssuer                  string `json:"credentialIssuer"`
	APIService                        string `json:"apiService"`
	ImpersonationLoadBalancerService  string `json:"impersonationLoadBalancerService"`
	ImpersonationClusterIPService     string `json:"impersonationClusterIPService"`
	ImpersonationTLSCertificateSecret string `json:"impersonationTLSCertificateSecret"`
	ImpersonationCACertificateSecret  string `json:"impersonationCACertificateSecret"`
	ImpersonationSignerSecret         string `json:"impersonationSignerSecret"`
	ImpersonationProxyServiceAccount  string `json:"impersonationProxyServiceAccount"`

	// Pinniped's; accepted and ignored.
	AgentServiceAccount            string `json:"agentServiceAccount,omitempty"`
	ImpersonationProxyLegacySecret string `json:"impersonationProxyLegacySecret,omitempty"`
}

// LogConfig configures the log.
type LogConfig struct {
	Level  string `json:"level"`  // "" means info; info, debug, trace, all
	Format string `json:"format"` // "" means json; json, text
}

// AuditConfig configures the audit lines of the log, and the optional audit log of requests.
type AuditConfig struct {
	LogUsernamesAndGroups string `json:"logUsernamesAndGroups"` // enabled or disabled
	PolicyFile            string `json:"policyFile,omitempty"`
	LogPath               string `json:"logPath,omitempty"` // "-" means the standard output
}

// MetricsConfig configures the address of the metrics, and who may read profiles there.
type MetricsConfig struct {
	Address string `json:"address"` // host:port, or off
	Pprof   string `json:"pprof"`   // disabled, local, anyone
}

// ReviewConfig configures how long the impersonation proxy caches a decision that allows a request.
type ReviewConfig struct {
	AllowTTL string `json:"allowTTL"`
}

// DiscoveryConfig configures how clients reach the API server.
type DiscoveryConfig struct {
	URL string `json:"url,omitempty"`
}

// DefaultAppName is the default prefix of object names.
const DefaultAppName = "pinniped-concierge"

// LoadConfig reads the configuration file; without a path, it returns the defaults. Unknown keys and values out of
// range are errors.
func LoadConfig(path string) (*Config, error) {
	var content []byte
	if path != "" {
		var err error
		if content, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
	}
	config, err := parseConfig(content)
	if err != nil {
		return nil, fmt.Errorf("reading configuration %q: %w", path, err)
	}
	return config, config.validate()
}

func parseConfig(content []byte) (*Config, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return nil, err
	}
	var values map[string]any
	if err := document.Decode(&values); err != nil {
		return nil, err
	}
	asJSON, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	appName := DefaultAppName
	if name, ok := values["appName"].(string); ok {
		appName = name
	}
	config := defaultConfig(appName)
	unknown, err := kjson.UnmarshalStrict(asJSON, config)
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrongType):
		return nil, fmt.Errorf("line %d: %s is a %s, but must be of type %s",
			line(&document, wrongType.Field), wrongType.Field, wrongType.Value, wrongType.Type)
	case err != nil:
		return nil, err
	}
	problems := make([]string, len(unknown))
	for i, err := range unknown {
		problems[i] = err.Error()
		if field, ok := err.(kjson.FieldError); ok { //nolint:errorlint // it is that type, never wrapped
			problems[i] = fmt.Sprintf("line %d: %v", line(&document, field.FieldPath()), err)
		}
	}
	if len(problems) > 0 {
		return nil, errors.New(strings.Join(problems, "; "))
	}
	config.API, config.KubeCertAgent, config.TLS = nil, nil, nil
	config.Names.AgentServiceAccount, config.Names.ImpersonationProxyLegacySecret = "", ""
	return config, nil
}

// line returns the line of the key with this path, or of the nearest key above it.
func line(document *yaml.Node, path string) int {
	at, found := document.Content[0], document.Content[0].Line
	for key := range strings.SplitSeq(path, ".") {
		for i := 0; i+1 < len(at.Content); i += 2 {
			if at.Kind == yaml.MappingNode && at.Content[i].Value == key {
				found, at = at.Content[i].Line, at.Content[i+1]
				break
			}
		}
	}
	return found
}

func defaultConfig(appName string) *Config {
	return &Config{
		AppName:                      appName,
		APIGroupSuffix:               apis.DefaultGroupSuffix,
		AggregatedAPIServerPort:      10250,
		ImpersonationProxyServerPort: 8444,
		Names: NamesConfig{
			ServingCertificateSecret:          appName + "-api-tls-serving-certificate",
			CredentialIssuer:                  appName + "-config",
			APIService:                        appName + "-api",
			ImpersonationLoadBalancerService:  appName + "-impersonation-proxy-load-balancer",
			ImpersonationClusterIPService:     appName + "-impersonation-proxy-cluster-ip",
			ImpersonationTLSCertificateSecret: appName + "-impersonation-proxy-tls-serving-certificate",
			ImpersonationCACertificateSecret:  appName + "-impersonation-proxy-ca-certificate",
			ImpersonationSignerSecret:         appName + "-impersonation-proxy-signer-ca-certificate",
			ImpersonationProxyServiceAccount:  appName + "-impersonation-proxy",
		},
		Log:                 LogConfig{Level: "info", Format: "json"},
		Audit:               AuditConfig{LogUsernamesAndGroups: disabled},
		Metrics:             MetricsConfig{Address: "127.0.0.1:8446", Pprof: string(metrics.ProfilingDisabled)},
		ShutdownDelay:       "0s",
		TrustBundleEndpoint: enabled,
		RevisionRetention:   "8760h",
		CredentialLifetime:  "5m",
		ClusterSigner:       disabled,
		AccessReviews:       ReviewConfig{AllowTTL: "10s"},
	}
}

// AppLabel returns the value of the label "app" on the agent's pods.
func (c *Config) AppLabel() string {
	if app := c.Labels["app"]; app != "" {
		return app
	}
	return c.AppName
}

// parsed returns a duration of a validated configuration.
func parsed(duration string) time.Duration {
	parsed, _ := time.ParseDuration(duration)
	return parsed
}

// Print writes the configuration as YAML, in the form of the file.
func (c *Config) Print(out io.Writer) error {
	content, err := k8syaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("encoding the configuration: %w", err)
	}
	_, err = out.Write(content)
	return err
}

// validate refuses invalid object names: with one of them the agent would wait forever, or try to create an invalid
// object.
func (n *NamesConfig) validate() []error {
	var missing []string
	var problems []error
	for _, name := range []struct{ key, value string }{
		{"servingCertificateSecret", n.ServingCertificateSecret},
		{"credentialIssuer", n.CredentialIssuer},
		{"apiService", n.APIService},
		{"impersonationLoadBalancerService", n.ImpersonationLoadBalancerService},
		{"impersonationClusterIPService", n.ImpersonationClusterIPService},
		{"impersonationTLSCertificateSecret", n.ImpersonationTLSCertificateSecret},
		{"impersonationCACertificateSecret", n.ImpersonationCACertificateSecret},
		{"impersonationSignerSecret", n.ImpersonationSignerSecret},
		{"impersonationProxyServiceAccount", n.ImpersonationProxyServiceAccount},
	} {
		if name.value == "" {
			missing = append(missing, name.key)
			continue
		}
		check := validation.IsDNS1123Subdomain
		if strings.HasSuffix(name.key, "Service") {
			check = validation.IsDNS1123Label
		}
		for _, problem := range check(name.value) {
			problems = append(problems, fmt.Errorf("names.%s is %q: %s", name.key, name.value, problem))
		}
	}
	if len(missing) > 0 {
		problems = append(problems, fmt.Errorf("validate names: missing required names: %s", strings.Join(missing, ", ")))
	}
	return problems
}

func (c *Config) validate() error {
	for _, problem := range validation.IsDNS1123Label(c.AppName) {
		return fmt.Errorf("appName is %q: %s", c.AppName, problem) // the other names begin with it
	}
	problems := c.Names.validate()
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if err := apis.ValidateGroupSuffix(c.APIGroupSuffix); err != nil {
		add("validate apiGroupSuffix: %w", err)
	}
	for key, port := range map[string]int32{
		"aggregatedAPIServerPort": c.AggregatedAPIServerPort, "impersonationProxyServerPort": c.ImpersonationProxyServerPort,
	} {
		if port < 1024 || port > 65535 {
			add("%s is %d: must be within range 1024 to 65535", key, port)
		}
	}
	if delay, err := time.ParseDuration(c.ShutdownDelay); err != nil || delay < 0 {
		add("shutdownDelay is %q: write a duration such as 10s", c.ShutdownDelay)
	}
	ttl := c.AccessReviews.AllowTTL
	if d, err := time.ParseDuration(ttl); err != nil || d < time.Millisecond || d > 10*time.Minute {
		add("accessReviews.allowTTL is %q: write a duration from 1ms to 10m, such as 10s", ttl)
	}
	if !slices.Contains([]string{"", "info", "debug", "trace", "all"}, c.Log.Level) {
		add("log.level is %q: use info, debug, trace or all", c.Log.Level)
	}
	if !slices.Contains([]string{"", "json", "text"}, c.Log.Format) {
		add("log.format is %q: use json or text", c.Log.Format)
	}
	if life, err := time.ParseDuration(c.CredentialLifetime); err != nil || life < time.Minute || life > 24*time.Hour {
		add("credentialLifetime is %q: write a duration from 1m to 24h, such as 5m", c.CredentialLifetime)
	}
	for _, option := range []struct{ key, value string }{
		{"trustBundleEndpoint", c.TrustBundleEndpoint}, {"clusterSigner", c.ClusterSigner},
	} {
		if option.value != enabled && option.value != disabled {
			add("%s is %q: use %s or %s", option.key, option.value, enabled, disabled)
		}
	}
	if at, err := url.Parse(c.Discovery.URL); c.Discovery.URL != "" &&
		(err != nil || at.Scheme != "https" || at.Host == "") {
		add("discovery.url is %q: write a URL such as https://kube.example.com:6443", c.Discovery.URL)
	}
	if memory, err := time.ParseDuration(c.RevisionRetention); err != nil || memory < time.Hour {
		add("revisionRetention is %q: write a duration of an hour or more, such as 8760h", c.RevisionRetention)
	}
	if c.CredentialIssuerSpec != nil && c.CredentialIssuerSpec.ImpersonationProxy == nil {
		add("credentialIssuerSpec: impersonationProxy is missing")
	}
	if c.Metrics.Address != metrics.AddressOff {
		_, port, err := net.SplitHostPort(c.Metrics.Address)
		if number, convErr := strconv.Atoi(port); err != nil || convErr != nil || number < 0 || number > 65535 {
			add("metrics.address is %q: write host:port, :port or off", c.Metrics.Address)
		}
	}
	profiling := []metrics.Profiling{metrics.ProfilingDisabled, metrics.ProfilingLocal, metrics.ProfilingAnyone}
	if !slices.Contains(profiling, metrics.Profiling(c.Metrics.Pprof)) {
		add("metrics.pprof is %q: use disabled, local or anyone", c.Metrics.Pprof)
	}
	if !slices.Contains([]string{"", enabled, disabled}, c.Audit.LogUsernamesAndGroups) {
		add("invalid logUsernamesAndGroups format, valid choices are 'enabled', 'disabled', or empty string (equivalent to " +
			"'disabled')")
	}
	if (c.Audit.PolicyFile == "") != (c.Audit.LogPath == "") {
		add("audit.policyFile and audit.logPath must be set together")
	}
	for key, value := range c.Labels {
		for _, problem := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
			add("label %q: %s", key, problem)
		}
	}
	return errors.Join(problems...)
}
