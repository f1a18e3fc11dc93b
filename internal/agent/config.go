package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"sigs.k8s.io/yaml"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Config is the agent's configuration. Its YAML form is the file that --config names; the keys are Pinniped's, so
// that its ConfigMap works unchanged. Keys that only concern parts this agent does not have are accepted and
// ignored: see IgnoredKeys.
type Config struct {
	AppName                                    string            `json:"appName" mapstructure:"appName"`
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
	TrustBundleEndpoint                        string            `json:"trustBundleEndpoint" mapstructure:"trustBundleEndpoint"` // enabled or disabled
	RevisionRetention                          string            `json:"revisionRetention" mapstructure:"revisionRetention"`
	CredentialLifetime                         string            `json:"credentialLifetime" mapstructure:"credentialLifetime"`
	ClusterSigner                              string            `json:"clusterSigner" mapstructure:"clusterSigner"` // enabled or disabled
	Discovery                                  DiscoveryConfig   `json:"discovery" mapstructure:"discovery"`
	AccessReviews                              ReviewConfig      `json:"accessReviews" mapstructure:"accessReviews"`

	// CredentialIssuerSpec is the spec of the CredentialIssuer that the agent makes when it starts for the first time and
	// there is none. Without it, none is made.
	CredentialIssuerSpec *configv1alpha1.CredentialIssuerSpec `json:"credentialIssuerSpec,omitempty" mapstructure:"-"`
}

// NamesConfig names objects that the agent reads and makes in its namespace: those that a Pinniped Concierge has, too.
type NamesConfig struct {
	ServingCertificateSecret          string `json:"servingCertificateSecret" mapstructure:"servingCertificateSecret"`
	CredentialIssuer                  string `json:"credentialIssuer" mapstructure:"credentialIssuer"`
	APIService                        string `json:"apiService" mapstructure:"apiService"`
	ImpersonationLoadBalancerService  string `json:"impersonationLoadBalancerService" mapstructure:"impersonationLoadBalancerService"`
	ImpersonationClusterIPService     string `json:"impersonationClusterIPService" mapstructure:"impersonationClusterIPService"`
	ImpersonationTLSCertificateSecret string `json:"impersonationTLSCertificateSecret" mapstructure:"impersonationTLSCertificateSecret"`
	ImpersonationCACertificateSecret  string `json:"impersonationCACertificateSecret" mapstructure:"impersonationCACertificateSecret"`
	ImpersonationSignerSecret         string `json:"impersonationSignerSecret" mapstructure:"impersonationSignerSecret"`
	ImpersonationProxyServiceAccount  string `json:"impersonationProxyServiceAccount" mapstructure:"impersonationProxyServiceAccount"`
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
}

// MetricsConfig says where metrics are served, and who gets profiles there.
type MetricsConfig struct {
	Address string `json:"address" mapstructure:"address"` // host:port, or off
	Pprof   string `json:"pprof" mapstructure:"pprof"`     // disabled, local, anyone
}

// ReviewConfig says for how long the impersonation proxy uses an answer of the API server about a user's permission
// again.
type ReviewConfig struct {
	AllowTTL string `json:"allowTTL" mapstructure:"allowTTL"`
}

// DiscoveryConfig says how clients reach the API server.
type DiscoveryConfig struct {
	URL string `json:"url,omitempty" mapstructure:"url"`
}

// DefaultAppName begins the names of all objects unless the configuration says otherwise.
const DefaultAppName = "pinniped-concierge"

// LoadConfig reads the configuration: flags over PINNIPED_AGENT_* over the file (none when path is empty) over
// defaults. Unknown keys and values out of range are errors.
func LoadConfig(path string, flags *pflag.FlagSet) (*Config, error) {
	v := viper.New()
	v.SetConfigType("yaml")
	var asWritten asWritten
	if path != "" {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
		if err := v.ReadConfig(strings.NewReader(string(content))); err != nil {
			return nil, fmt.Errorf("reading configuration %q: %w", path, err)
		}
		if asWritten, err = readAsWritten(content); err != nil {
			return nil, fmt.Errorf("reading configuration %q: %w", path, err)
		}
		if err := checkKeys(v.AllKeys()); err != nil {
			return nil, fmt.Errorf("reading configuration %q: %w", path, err)
		}
	}
	take := func(key, flag string) error {
		if err := v.BindEnv(key, envName(key)); err != nil {
			return fmt.Errorf("binding %s: %w", envName(key), err)
		}
		if flag := flags.Lookup(flag); flag != nil && flag.Changed {
			v.Set(key, flag.Value.String())
		}
		return nil
	}
	for _, knob := range knobs { // appName first
		if err := take(knob.key, knob.flag); err != nil {
			return nil, err
		}
		v.SetDefault(knob.key, knob.standard(v.GetString("appName")))
	}
	config := &Config{}
	if err := v.Unmarshal(config); err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	config.Labels, config.CredentialIssuerSpec = asWritten.Labels, asWritten.CredentialIssuerSpec.spec
	if err := errors.Join(config.validate(), checkNames(v.GetString)); err != nil {
		return nil, err
	}
	return config, nil
}

// asWritten are the values that are read apart, because viper turns the keys of maps to lower case.
type asWritten struct {
	Labels               map[string]string `json:"labels"`
	CredentialIssuerSpec strictSpec        `json:"credentialIssuerSpec"`
}

func readAsWritten(content []byte) (asWritten, error) {
	var file asWritten
	err := yaml.Unmarshal(content, &file)
	return file, err
}

// strictSpec is a spec in which unknown fields are errors, as unknown keys are everywhere in the configuration.
type strictSpec struct {
	spec *configv1alpha1.CredentialIssuerSpec
}

// UnmarshalJSON reads it.
func (s *strictSpec) UnmarshalJSON(content []byte) error {
	if err := yaml.UnmarshalStrict(content, &s.spec); err != nil {
		return fmt.Errorf("credentialIssuerSpec: %w", err)
	}
	if s.spec != nil && s.spec.ImpersonationProxy == nil {
		return errors.New("credentialIssuerSpec: impersonationProxy is missing")
	}
	return nil
}

// AppLabel returns the value of the label "app" on the agent's pods.
func (c *Config) AppLabel() string {
	if app := c.Labels["app"]; app != "" {
		return app
	}
	return c.AppName
}

// ownNames names the objects that only this agent has.
type ownNames struct {
	lastGoodSecret, recordSecret, revisionsConfigMap, lease string
	userAccountsServiceAccount, userAccountsNamespace       string
}

func (c *Config) ownNames() ownNames {
	return ownNames{
		lastGoodSecret:             c.AppName + "-impersonation-proxy-last-good-certificate",
		recordSecret:               c.AppName + "-credential-issuer-record",
		revisionsConfigMap:         c.AppName + "-revisions",
		lease:                      c.AppName,
		userAccountsServiceAccount: c.AppName + "-user-accounts",
		userAccountsNamespace:      c.AppName + "-users",
	}
}

// shutdownDelay returns ShutdownDelay, which validate has checked.
func (c *Config) shutdownDelay() time.Duration {
	delay, _ := time.ParseDuration(c.ShutdownDelay)
	return delay
}

// allowTTL returns AllowTTL, which validate has checked.
func (c ReviewConfig) allowTTL() time.Duration {
	ttl, _ := time.ParseDuration(c.AllowTTL)
	return ttl
}

// credentialLifetime returns CredentialLifetime, which validate has checked.
func (c *Config) credentialLifetime() time.Duration {
	life, _ := time.ParseDuration(c.CredentialLifetime)
	return life
}

// revisionRetention returns RevisionRetention, which validate has checked.
func (c *Config) revisionRetention() time.Duration {
	memory, _ := time.ParseDuration(c.RevisionRetention)
	return memory
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
