package agent

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pinniped-toolkit/pinniped/internal/metrics"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

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
		add("only one of audit.policyFile and audit.logPath is set")
	}
	for key, value := range c.Labels {
		for _, problem := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
			add("label %q: %s", key, problem)
		}
	}
	return errors.Join(problems...)
}
