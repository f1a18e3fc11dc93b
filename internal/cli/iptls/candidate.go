package iptls

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Candidate is the configuration that a command judges: flags that name a certificate and what goes with it.
type Candidate struct {
	Secret           string
	CABundle         string // a path, or "-" for stdin
	CAFromSecret     bool
	SystemRoots      bool
	ExternalEndpoint string
	LoadBalancerIP   string
	Allow            []string

	// Changed says whether a flag was given on the command line.
	Changed func(flag string) bool
}

func (c *Candidate) addFlags(cmd *cobra.Command, secretUsage, bundleUsage string) {
	flags := cmd.Flags()
	flags.StringVar(&c.Secret, "secret", "", secretUsage)
	flags.StringVar(&c.CABundle, "ca-bundle", "", bundleUsage)
	flags.BoolVar(&c.CAFromSecret, "ca-from-secret", false, "advertise ca.crt of the Secret, even when the CredentialIssuer has a CA bundle")
	flags.BoolVar(&c.SystemRoots, "system-roots", false, "advertise no CA bundle: clients verify with their system roots, as for a certificate of a public CA")
	flags.StringVar(&c.ExternalEndpoint, "external-endpoint", "", `where clients reach the impersonation proxy: HOST or HOST:PORT (default: as it is)`)
	flags.StringVar(&c.LoadBalancerIP, "load-balancer-ip", "", "IP address that the Service of type LoadBalancer asks for (default: as it is)")
	flags.StringArrayVar(&c.Allow, "allow", nil, `let through what the check with this code refuses (repeatable), for example NameNotCovered`)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"allow":             factory.CompleteValues(explained(allowable())...),
		"external-endpoint": cobra.NoFileCompletions,
		"load-balancer-ip":  cobra.NoFileCompletions,
	})
}

// explained returns codes as a shell shows them: each with its cause.
func explained(codes []string) []string {
	for i, code := range codes {
		if e, ok := certs.Explain(certs.Code(code)); ok {
			codes[i] = cobra.CompletionWithDesc(code, e.Cause)
		}
	}
	return codes
}

func allowable() []string {
	var codes []string
	for _, code := range certs.Codes() {
		if certs.Allowable(code) {
			codes = append(codes, string(code))
		}
	}
	return codes
}

func (c *Candidate) validate() error {
	if err := c.validateBundleSource(); err != nil {
		return err
	}
	if _, err := allowedCodes(c.Allow); err != nil {
		return err
	}
	if err := validateEndpoint("external-endpoint", c.ExternalEndpoint); err != nil {
		return err
	}
	if c.Changed("load-balancer-ip") {
		if _, err := netip.ParseAddr(c.LoadBalancerIP); err != nil {
			return ui.Usage(fmt.Errorf("invalid value %q for --load-balancer-ip: not an IP address", c.LoadBalancerIP))
		}
	}
	return nil
}

// validateBundleSource wants at most one source of the CA bundle.
func (c *Candidate) validateBundleSource() error {
	var given []string
	for _, source := range []struct {
		flag  string
		given bool
	}{{"--ca-bundle", c.Changed("ca-bundle")}, {"--ca-from-secret", c.CAFromSecret}, {"--system-roots", c.SystemRoots}} {
		if source.given {
			given = append(given, source.flag)
		}
	}
	if len(given) < 2 {
		return nil
	}
	return ui.WithHint(ui.Usage(fmt.Errorf("%s and %s exclude each other", given[0], given[1])),
		"clients verify with one of: a file (--ca-bundle), ca.crt of the Secret (--ca-from-secret), their system roots (--system-roots)")
}

func validateEndpoint(flag, value string) error {
	if value == "" {
		return nil
	}
	if _, _, err := certs.ParseEndpoint(value); err != nil {
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value for --%s: %s: %w", flag, certs.EndpointInvalid, err)),
			"write a DNS name or an IP address, and a port if it is not 443: proxy.example.com:8443")
	}
	return nil
}

// allowedCodes returns the codes that --allow names.
func allowedCodes(texts []string) ([]certs.Code, error) {
	var codes []certs.Code
	for _, text := range texts {
		if err := validateAllow(text); err != nil {
			return nil, err
		}
		codes = append(codes, certs.Code(text))
	}
	return codes, nil
}

func validateAllow(text string) error {
	code := certs.Code(text)
	switch {
	case certs.Allowable(code):
		return nil
	case slices.Contains(certs.Codes(), code):
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --allow: this cannot be let through", text)), "run %q", "pinniped explain "+text)
	default:
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --allow: there is no such code", text)), "%s", codesHint(text))
	}
}

func codesHint(text string) string {
	hint := "the codes are " + strings.Join(allowable(), ", ")
	if near := factory.Nearest(text, allowable()); near != "" {
		hint = fmt.Sprintf("did you mean %q? %s", near, hint)
	}
	return hint
}

// asRequest turns the flags into a request: it reads the CA bundle.
func (c *Candidate) asRequest(stdin io.Reader) (request, error) {
	req := request{secret: c.Secret, bundleFromSecret: c.CAFromSecret, systemRoots: c.SystemRoots}
	for _, code := range c.Allow {
		req.allow = append(req.allow, certs.Code(code))
	}
	if c.Changed("external-endpoint") {
		req.endpoint = &c.ExternalEndpoint
	}
	if c.Changed("load-balancer-ip") {
		req.loadBalancerIP = &c.LoadBalancerIP
	}
	if c.Changed("ca-bundle") {
		bundle, err := readFile("the CA bundle", c.CABundle, stdin, certs.DefaultLimits().BundleBytes)
		if err != nil {
			return request{}, err
		}
		if strings.TrimSpace(string(bundle)) == "" {
			return request{}, ui.WithHint(ui.Usage(fmt.Errorf("the CA bundle from %s is empty", nameOf(c.CABundle))),
				"give --ca-from-secret for ca.crt of the Secret, or --system-roots for the system roots of clients")
		}
		req.bundle, req.bundleGiven = bundle, true
	}
	return req, nil
}

// readPEMFile is readFile for a file that must not be empty.
func readPEMFile(what, path string, stdin io.Reader, limit int) ([]byte, error) {
	content, err := readFile(what, path, stdin, limit)
	if err == nil && len(bytes.TrimSpace(content)) == 0 {
		return nil, ui.WithHint(ui.Usage(fmt.Errorf("%s in %s is empty", what, nameOf(path))), "give the file that holds it, in PEM")
	}
	return content, err
}

// readFile reads one byte more than what the checks take, so that they can say that it is too much.
func readFile(what, path string, stdin io.Reader, limit int) ([]byte, error) {
	source := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, ui.Usage(fmt.Errorf("reading %s: %w", what, err))
		}
		defer file.Close() //nolint:errcheck // only read
		source = file
	}
	content, err := io.ReadAll(io.LimitReader(source, int64(limit)+1))
	if err != nil {
		return nil, ui.Usage(fmt.Errorf("reading %s: %w", what, err))
	}
	return content, nil
}

func nameOf(path string) string {
	if path == "-" {
		return "stdin"
	}
	return fmt.Sprintf("%q", path)
}

// fitsSecret says whether the Secret has what the request wants to be advertised.
func (r request) fitsSecret(secret *corev1.Secret) error {
	if secret == nil {
		return nil // a check says so
	}
	has := len(secret.Data[caBundleKey]) > 0
	name := secret.Namespace + "/" + secret.Name
	switch {
	case r.bundleFromSecret && !has:
		return ui.WithExitCode(ui.WithHint(fmt.Errorf("Secret %q has no ca.crt that could be advertised", name),
			"give the CA bundle as a file with --ca-bundle, or --system-roots if the certificate is of a public CA"), ui.ExitRefused)
	case r.systemRoots && has:
		return ui.WithExitCode(ui.WithHint(fmt.Errorf("Secret %q has a ca.crt, which the agent advertises to clients in place of their system roots", name),
			`remove it: kubectl patch secret %s --namespace %s --type=json -p='[{"op":"remove","path":"/data/ca.crt"}]'`, secret.Name, secret.Namespace), ui.ExitRefused)
	}
	return nil
}

// lastGoodSuffix ends the name of the Secret in which the agent keeps a copy of the external certificate in service.
const lastGoodSuffix = "-impersonation-proxy-last-good-certificate"

// fits says whether the request can be meant for this CredentialIssuer.
func (r request) fits(issuer *configv1alpha1.CredentialIssuer) error {
	if name := r.secretName(); name.Namespace == r.namespace && name.Name == appName(issuer)+lastGoodSuffix {
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value for --secret: Secret %q is the copy that the agent itself keeps, and removes", name)),
			"name the Secret that the certificate comes from")
	}
	if kind := serviceType(issuer.Spec.ImpersonationProxy); r.loadBalancerIP != nil && kind != configv1alpha1.ServiceTypeLoadBalancer {
		return ui.Usage(fmt.Errorf("--load-balancer-ip needs a Service of type LoadBalancer, but CredentialIssuer %q has type %s", issuer.Name, kind))
	}
	return nil
}
