package session

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// CertificateFlags are the flags for a certificate, its CA bundle, its endpoint, and codes to allow.
type CertificateFlags struct {
	Secret           string
	CABundle         string // path, or "-" for stdin
	CABundleFrom     string // KIND/NAME or KIND/NAME#KEY
	CAFromSecret     bool
	SystemRoots      bool
	ExternalEndpoint string
	LoadBalancerIP   string
	Allow            []string

	// Changed reports whether a flag is on the command line.
	Changed func(flag string) bool

	// Set by Validate.
	source *configv1alpha1.CertificateAuthorityDataSourceSpec
	allow  []certs.Code
}

// AddFlags adds the flags to a command.
func (c *CertificateFlags) AddFlags(cmd *cobra.Command, secretUsage, bundleUsage string) {
	flags := cmd.Flags()
	flags.StringVar(&c.Secret, "secret", "", secretUsage)
	flags.StringVar(&c.CABundle, "ca-bundle", "", bundleUsage)
	flags.StringVar(&c.CABundleFrom, "ca-bundle-from", "", "object that has the CA bundle and that the agent watches: "+
		"configmap/NAME[#KEY] or secret/NAME[#KEY] in the agent's namespace (default key: ca.crt), or "+
		"clustertrustbundle/NAME")
	flags.BoolVar(&c.CAFromSecret, "ca-from-secret", false, "publish ca.crt of the Secret, even when the "+
		"CredentialIssuer has a CA bundle")
	flags.BoolVar(&c.SystemRoots, "system-roots", false, "publish no CA bundle, so that clients verify with their "+
		"system roots, as for a public CA")
	flags.StringVar(&c.ExternalEndpoint, "external-endpoint", "",
		`where clients reach the impersonation proxy: HOST or HOST:PORT (default: unchanged)`)
	flags.StringVar(&c.LoadBalancerIP, "load-balancer-ip", "",
		"IP address that the Service of type LoadBalancer requests (default: unchanged)")
	AddAllowFlag(cmd, &c.Allow, "NameNotCovered")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"ca-bundle-from":    cobra.NoFileCompletions,
		"external-endpoint": cobra.NoFileCompletions,
		"load-balancer-ip":  cobra.NoFileCompletions,
	})
}

// Validate checks the flags, without reading anything.
func (c *CertificateFlags) Validate() error {
	var badSource, badCode, badIP error
	c.source, badSource = c.bundleSource()
	c.allow, badCode = AllowedCodes(c.Allow)
	if _, err := netip.ParseAddr(c.LoadBalancerIP); err != nil && c.Changed("load-balancer-ip") {
		badIP = ui.Usage(fmt.Errorf("invalid value %q for --load-balancer-ip: not an IP address", c.LoadBalancerIP))
	}
	return cmp.Or(c.validateBundleSource(), badSource, validateSecretName(c.Secret), badCode,
		ValidateEndpoint("external-endpoint", c.ExternalEndpoint), badIP)
}

// validateSecretName checks --secret, which may be empty, before the agent's namespace is known.
func validateSecretName(value string) error {
	name, err := delegation.SecretName(value, "")
	if err == nil && value != "" && len(validation.IsDNS1123Subdomain(name.Name)) > 0 {
		err = fmt.Errorf("%.100q cannot be the name of a Secret", name.Name)
	}
	if err == nil {
		return nil
	}
	return ui.WithHint(ui.Usage(fmt.Errorf("invalid value for --secret: %w", err)),
		"write NAME for a Secret in the agent's namespace, or NAMESPACE/NAME, in lower case: --secret proxy-tls")
}

// validateBundleSource permits at most one source of the CA bundle.
func (c *CertificateFlags) validateBundleSource() error {
	var given []string
	isGiven := []bool{c.Changed("ca-bundle"), c.Changed("ca-bundle-from"), c.CAFromSecret, c.SystemRoots}
	for i, flag := range []string{"--ca-bundle", "--ca-bundle-from", "--ca-from-secret", "--system-roots"} {
		if isGiven[i] {
			given = append(given, flag)
		}
	}
	if len(given) < 2 {
		return nil
	}
	return ui.WithHint(ui.Usage(fmt.Errorf("%s and %s cannot be combined", given[0], given[1])),
		"choose what clients verify with: a file (--ca-bundle), another object (--ca-bundle-from), ca.crt of the Secret "+
			"(--ca-from-secret), or their system roots (--system-roots)")
}

// bundleSource parses --ca-bundle-from; it returns nil without it.
func (c *CertificateFlags) bundleSource() (*configv1alpha1.CertificateAuthorityDataSourceSpec, error) {
	if !c.Changed("ca-bundle-from") {
		return nil, nil //nolint:nilnil // the flag is optional
	}
	object, key, hasKey := strings.Cut(c.CABundleFrom, "#")
	kind, name, _ := strings.Cut(object, "/")
	from := &configv1alpha1.CertificateAuthorityDataSourceSpec{Name: name, Key: key}
	switch strings.ToLower(kind) {
	case "configmap", "cm":
		from.Kind = configv1alpha1.SourceConfigMap
	case "secret":
		from.Kind = configv1alpha1.SourceSecret
	case "clustertrustbundle":
		from.Kind = configv1alpha1.SourceClusterTrustBundle
	}
	clusterWide := from.Kind == configv1alpha1.SourceClusterTrustBundle
	if !clusterWide && !hasKey {
		from.Key = plan.CABundleKey
	}
	if from.Kind == "" || name == "" || strings.Contains(name, "/") || clusterWide != (from.Key == "") {
		return nil, ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --ca-bundle-from", c.CABundleFrom)),
			"write configmap/NAME, configmap/NAME#KEY, secret/NAME, secret/NAME#KEY or clustertrustbundle/NAME: "+
				"--ca-bundle-from configmap/company-ca")
	}
	return from, nil
}

// Request reads the CA bundle and returns the validated flags as a request.
func (c *CertificateFlags) Request(stdin io.Reader) (plan.Request, error) {
	req := plan.Request{
		Secret: c.Secret, Source: c.source, BundleFromSecret: c.CAFromSecret, SystemRoots: c.SystemRoots, Allow: c.allow,
	}
	if c.Changed("external-endpoint") {
		req.Endpoint = &c.ExternalEndpoint
		req.Sources.Endpoint = "--external-endpoint"
	}
	if c.Changed("load-balancer-ip") {
		req.LoadBalancerIP = &c.LoadBalancerIP
	}
	if c.Changed("ca-bundle") {
		bundle, err := readPEM("the CA bundle", c.CABundle, stdin)
		if err != nil {
			return plan.Request{}, err
		}
		if strings.TrimSpace(string(bundle)) == "" {
			return req, ui.WithHint(ui.Usage(fmt.Errorf("the CA bundle from %s is empty", NameOf(c.CABundle))),
				"use --ca-from-secret for the Secret's ca.crt, or --system-roots for clients' system roots")
		}
		req.Bundle, req.BundleGiven = bundle, true
		req.Sources.Bundle = "the CA bundle of --ca-bundle"
	}
	return req, nil
}

// AddAllowFlag adds --allow to a command. example is a code for its help.
func AddAllowFlag(cmd *cobra.Command, into *[]string, example string) {
	cmd.Flags().StringArrayVar(into, "allow", nil, "accept the error with this code (repeatable), for example "+example)
	codes := allowable()
	for i, code := range codes {
		if e, ok := certs.Explain(certs.Code(code)); ok {
			codes[i] = cobra.CompletionWithDesc(code, e.Cause)
		}
	}
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{"allow": factory.CompleteValues(codes...)})
}

// allowable returns the codes that --allow accepts.
func allowable() []string {
	var codes []string
	for _, code := range certs.Codes() {
		if certs.Allowable(code) {
			codes = append(codes, string(code))
		}
	}
	return codes
}

// AllowedCodes returns the codes of --allow, or an error for a code that it does not accept.
func AllowedCodes(texts []string) ([]certs.Code, error) {
	var codes []certs.Code
	for _, text := range texts {
		code := certs.Code(text)
		switch {
		case certs.Allowable(code):
			codes = append(codes, code)
		case slices.Contains(certs.Codes(), code):
			return nil, ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --allow: this error cannot be accepted", text)),
				"run %q", "pinniped explain "+text)
		default:
			hint := "the codes are " + strings.Join(allowable(), ", ")
			if near := factory.Nearest(text, allowable()); near != "" {
				hint = fmt.Sprintf("did you mean %q? %s", near, hint)
			}
			return nil, ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --allow: there is no such code", text)),
				"%s", hint)
		}
	}
	return codes, nil
}

// ValidateEndpoint returns an error for a value that is not HOST, HOST:PORT or empty.
func ValidateEndpoint(flag, value string) error {
	if value == "" {
		return nil
	}
	if _, _, err := certs.ParseEndpoint(value); err != nil {
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value for --%s: %s: %w", flag, certs.EndpointInvalid, err)),
			"write a DNS name or an IP address, and a port if it is not 443: proxy.example.com:8443")
	}
	return nil
}
