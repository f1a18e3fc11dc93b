package agent

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

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
	ttl := c.AccessReviews.AllowTTL
	if d, err := time.ParseDuration(ttl); err != nil || d < time.Millisecond || d > 10*time.Minute {
		problems = append(
			problems,
			fmt.Errorf("accessReviews.allowTTL is %q: write a duration from 1ms to 10m, such as 10s", ttl),
		)
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
	if !slices.Contains([]string{enabled, disabled}, c.TrustBundleEndpoint) {
		problems = append(
			problems,
			fmt.Errorf("trustBundleEndpoint is %q: use %s or %s", c.TrustBundleEndpoint, enabled, disabled),
		)
	}
	if !slices.Contains([]string{enabled, disabled}, c.ClusterSigner) {
		problems = append(
			problems,
			fmt.Errorf("clusterSigner is %q: use %s or %s", c.ClusterSigner, enabled, disabled),
		)
	}
	if at, err := url.Parse(c.Discovery.URL); c.Discovery.URL != "" &&
		(err != nil || at.Scheme != "https" || at.Host == "") {
		problems = append(
			problems,
			fmt.Errorf("discovery.url is %q: write a URL such as https://kube.example.com:6443", c.Discovery.URL),
		)
	}
	if memory, err := time.ParseDuration(c.RevisionRetention); err != nil || memory < time.Hour {
		problems = append(
			problems,
			fmt.Errorf("revisionRetention is %q: write a duration of an hour or more, such as 8760h", c.RevisionRetention),
		)
	}
	if c.CredentialIssuerSpec != nil && c.CredentialIssuerSpec.ImpersonationProxy == nil {
		problems = append(problems, errors.New("credentialIssuerSpec: impersonationProxy is missing"))
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
