package iptls

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// SetOptions is everything `pinniped ip-tls set` needs; a test fills it directly.
type SetOptions struct {
	genericiooptions.IOStreams
	Cluster          factory.ClusterFlags
	Suffix           string
	CredentialIssuer string
	Namespace        string

	Secret           string
	CABundle         string // a path, or "-" for stdin
	CAFromSecret     bool
	ExternalEndpoint string
	LoadBalancerIP   string
	Allow            []string

	DryRun     string
	Diff       bool
	Output     string
	Wait       bool
	NoRollback bool
	Timeout    time.Duration

	// Changed says whether a flag was given on the command line.
	Changed func(flag string) bool
	// Connect loads the kubeconfig and returns a client, without contacting the cluster, and the API server's clock.
	Connect  func(factory.ClusterFlags, string) (Cluster, func(time.Time) time.Time, error)
	Network  Network
	Now      func() time.Time
	Poll     time.Duration // between two looks at the cluster while waiting
	Progress func() *ui.Progress

	cluster    Cluster
	serverTime func(time.Time) time.Time
	request    request
	progress   *ui.Progress
}

const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

func newSetCommand(f *factory.Factory) *cobra.Command {
	o := &SetOptions{
		IOStreams: f.IOStreams, Network: RealNetwork{}, Now: f.Now, Poll: 200 * time.Millisecond, Progress: f.Progress,
		Connect: func(flags factory.ClusterFlags, suffix string) (Cluster, func(time.Time) time.Time, error) {
			cluster, err := f.Cluster(flags)
			if err != nil {
				return nil, nil, err
			}
			clock := &serverClock{now: f.Now}
			clock.watch(cluster.REST)
			client, err := f.Connect(cluster, suffix)
			return client, clock.at, err
		},
	}
	cmd := &cobra.Command{
		Use:   "set --secret NAME",
		Short: "Put the certificate in a Secret in front of the impersonation proxy",
		Long: `Put the certificate in a Secret of the agent's namespace in front of the impersonation proxy.

The Secret has the keys tls.crt (the certificate, then its intermediates) and tls.key, and perhaps ca.crt. Before anything is
changed, the certificate is checked: key, dates, names under which clients connect, chain to the CA bundle that clients will be
given, kubeconfigs handed out so far, and more ("pinniped explain CODE" tells about each). A certificate that does not fit is
refused, and nothing is changed. --allow lets one kind of error through.

Then the CredentialIssuer is changed (by server-side apply, as field manager "pinniped-cli"), and the command waits until the
agent reports the CA bundle and every address of the endpoint presents this very certificate. If that does not happen in time,
the previous configuration is put back.

Exit codes: 0 done or unchanged, 1 failed, 2 wrong usage, 3 refused by a check, 4 not permitted by the cluster,
5 did not take effect in time, 124 timed out before anything was changed, 130 interrupted.`,
		Example: `  # The certificate and its CA come from cert-manager, which puts the CA into ca.crt of the Secret
  pinniped ip-tls set --secret proxy-tls --external-endpoint proxy.example.com

  # A certificate of the company's own PKI
  kubectl create secret tls proxy-tls --namespace pinniped-concierge --cert=fullchain.pem --key=key.pem
  pinniped ip-tls set --secret proxy-tls --ca-bundle company-ca.pem --external-endpoint proxy.example.com:8443

  # Only look at what would happen
  pinniped ip-tls set --secret proxy-tls --ca-bundle company-ca.pem --dry-run --diff

  # In a script
  pinniped ip-tls set --secret proxy-tls --timeout 5m -o json`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Changed = cmd.Flags().Changed
			if err := o.Validate(); err != nil {
				return err
			}
			if err := o.Complete(); err != nil {
				return err
			}
			return o.Run(cmd.Context())
		},
	}
	o.addFlags(cmd, f)
	return cmd
}

func (o *SetOptions) addFlags(cmd *cobra.Command, f *factory.Factory) {
	flags := cmd.Flags()
	flags.StringVar(&o.Secret, "secret", "", "name of the Secret with the certificate, in the agent's namespace (required)")
	flags.StringVar(&o.CABundle, "ca-bundle", "", `CA bundle to advertise to clients: a PEM file, or "-" for stdin (default: what the CredentialIssuer has, else ca.crt of the Secret, else none)`)
	flags.BoolVar(&o.CAFromSecret, "ca-from-secret", false, "advertise ca.crt of the Secret, even when the CredentialIssuer has a CA bundle")
	flags.StringVar(&o.ExternalEndpoint, "external-endpoint", "", `where clients reach the impersonation proxy: HOST or HOST:PORT (default: as it is)`)
	flags.StringVar(&o.LoadBalancerIP, "load-balancer-ip", "", "IP address that the Service of type LoadBalancer asks for (default: as it is)")
	flags.StringArrayVar(&o.Allow, "allow", nil, `let through what the check with this code refuses (repeatable), for example NameNotCovered`)
	flags.StringVar(&o.DryRun, "dry-run", dryRunNone, `change nothing: "client" only looks and checks, "server" also lets the API server validate`)
	flags.Lookup("dry-run").NoOptDefVal = dryRunClient
	flags.BoolVar(&o.Diff, "diff", false, "show the fields that change, before and after")
	flags.StringVarP(&o.Output, "output", "o", "text", "output format: text, json or yaml")
	flags.BoolVar(&o.Wait, "wait", true, "wait until the endpoint presents the certificate")
	flags.BoolVar(&o.NoRollback, "no-rollback", false, "leave the new configuration in place when it does not take effect in time")
	flags.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "how long it may take in all (0: no limit)")
	flags.StringVar(&o.CredentialIssuer, "credential-issuer", "", "name of the CredentialIssuer (default: the only one)")
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "the agent's namespace (default: found in the cluster, else "+defaultNamespace+")")
	flags.StringVar(&o.Suffix, "api-group-suffix", apis.DefaultGroupSuffix, "API group suffix of the installation")
	o.Cluster.AddFlags(flags)
	factory.Bind(flags, "timeout", factory.KeyTimeout)
	factory.Bind(flags, "credential-issuer", factory.KeyCredentialIssuer)
	factory.Bind(flags, "namespace", factory.KeyNamespace)
	factory.Bind(flags, "api-group-suffix", factory.KeyAPIGroupSuffix)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"allow":              factory.CompleteValues(allowable()...),
		"dry-run":            factory.CompleteValues(dryRunNone, dryRunClient, dryRunServer),
		"output":             factory.CompleteValues("text", "json", "yaml"),
		"credential-issuer":  f.CompleteCredentialIssuers(&o.Cluster, &o.Suffix),
		"kubeconfig-context": f.CompleteContexts(&o.Cluster),
		"external-endpoint":  cobra.NoFileCompletions,
		"load-balancer-ip":   cobra.NoFileCompletions,
		"secret":             cobra.NoFileCompletions,
	})
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

// Validate checks the flags before anything is read.
func (o *SetOptions) Validate() error {
	if o.Secret == "" {
		return ui.WithHint(ui.Usage(errors.New("--secret is missing")), "name the Secret with the certificate: --secret proxy-tls")
	}
	switch o.Output {
	case "text", "json", "yaml":
	default:
		return factory.OneOf("output", o.Output, "text", "json", "yaml")
	}
	switch o.DryRun {
	case dryRunNone, dryRunClient, dryRunServer:
	default:
		return factory.OneOf("dry-run", o.DryRun, dryRunNone, dryRunClient, dryRunServer)
	}
	if o.Changed("ca-bundle") && o.CAFromSecret {
		return ui.Usage(errors.New("--ca-bundle and --ca-from-secret exclude each other"))
	}
	for _, code := range o.Allow {
		if err := validateAllow(code); err != nil {
			return err
		}
	}
	if o.ExternalEndpoint != "" {
		if _, _, err := certs.ParseEndpoint(o.ExternalEndpoint); err != nil {
			return ui.WithHint(ui.Usage(fmt.Errorf("invalid value for --external-endpoint: %s: %w", certs.EndpointInvalid, err)),
				"write a DNS name or an IP address, and a port if it is not 443: proxy.example.com:8443")
		}
	}
	if o.Changed("load-balancer-ip") {
		if _, err := netip.ParseAddr(o.LoadBalancerIP); err != nil {
			return ui.Usage(fmt.Errorf("invalid value %q for --load-balancer-ip: not an IP address", o.LoadBalancerIP))
		}
	}
	return ui.Usage(factory.ValidateSuffix(o.Suffix))
}

func validateAllow(text string) error {
	code := certs.Code(text)
	switch {
	case certs.Allowable(code):
		return nil
	case slices.Contains(certs.Codes(), code):
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --allow: this cannot be let through", text)), "run %q", "pinniped explain "+text)
	default:
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --allow: there is no such code", text)), "the codes are %s", strings.Join(allowable(), ", "))
	}
}

// Complete turns the flags into a request: it reads the CA bundle and loads the kubeconfig.
func (o *SetOptions) Complete() error {
	o.progress = o.Progress()
	o.request = request{secret: o.Secret, bundleFromSecret: o.CAFromSecret}
	for _, code := range o.Allow {
		o.request.allow = append(o.request.allow, certs.Code(code))
	}
	if o.Changed("external-endpoint") {
		o.request.endpoint = &o.ExternalEndpoint
	}
	if o.Changed("load-balancer-ip") {
		o.request.loadBalancerIP = &o.LoadBalancerIP
	}
	if o.Changed("ca-bundle") {
		bundle, err := o.readBundle()
		if err != nil {
			return err
		}
		o.request.bundle, o.request.bundleGiven = bundle, true
	}
	var err error
	o.cluster, o.serverTime, err = o.Connect(o.Cluster, o.Suffix)
	return err
}

func (o *SetOptions) readBundle() ([]byte, error) {
	source, name := o.In, "stdin"
	if o.CABundle != "-" {
		file, err := os.Open(o.CABundle)
		if err != nil {
			return nil, ui.Usage(fmt.Errorf("reading the CA bundle: %w", err))
		}
		defer file.Close() //nolint:errcheck // only read
		source, name = file, fmt.Sprintf("%q", o.CABundle)
	}
	// One byte more than what the checks take, so that they can say that it is too much.
	bundle, err := io.ReadAll(io.LimitReader(source, int64(certs.DefaultLimits().BundleBytes)+1))
	if err != nil {
		return nil, fmt.Errorf("reading the CA bundle from %s: %w", name, err)
	}
	if strings.TrimSpace(string(bundle)) == "" {
		return nil, ui.WithHint(ui.Usage(fmt.Errorf("the CA bundle from %s is empty", name)), "leave out --ca-bundle when clients are to use ca.crt of the Secret or their system roots")
	}
	return bundle, nil
}

// Run checks, applies, waits and prints.
func (o *SetOptions) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if err := o.findSecret(ctx); err != nil {
		return err
	}
	st, p, applied, err := o.applyChecked(ctx)
	if p == nil {
		return err
	}
	result := newResult(o.request, st, p, o.DryRun)
	if err != nil {
		if errors.Is(err, errRefused) {
			result.Action = actionRefused
			return errors.Join(o.print(result), err)
		}
		return err
	}
	if o.DryRun == dryRunNone && o.Wait {
		if err := o.waitAndReport(ctx, st, p, applied, result); err != nil {
			return err
		}
	}
	return o.print(result)
}

// findSecret resolves the agent's namespace; NAMESPACE/NAME is taken when it names that very namespace.
func (o *SetOptions) findSecret(ctx context.Context) error {
	namespace, err := findNamespace(ctx, o.cluster, o.Namespace)
	if err != nil {
		return err
	}
	o.request.namespace = namespace
	if other, name, ok := strings.Cut(o.Secret, "/"); ok {
		if other != namespace {
			return ui.WithHint(ui.Usage(fmt.Errorf("the Secret %q is not in the agent's namespace %q", o.Secret, namespace)),
				"copy the certificate into a Secret of namespace %q", namespace)
		}
		o.request.secret = name
	}
	return nil
}

// errRefused marks a refusal by a check.
var errRefused = errors.New("the certificate is refused")

// attempts bounds how often a CredentialIssuer that changes under our hands is looked at anew.
const attempts = 5

// applyChecked gathers, decides and applies. When the CredentialIssuer has changed between reading and applying, it
// starts over, so that what is applied was checked against what is there. applied is nil when nothing had to change.
func (o *SetOptions) applyChecked(ctx context.Context) (*state, *plan, *configv1alpha1.CredentialIssuer, error) {
	for attempt := 1; ; attempt++ {
		st, p, err := o.look(ctx, attempt == 1)
		if err != nil {
			return nil, nil, nil, err
		}
		if err := o.refusal(p.report); err != nil {
			return st, p, nil, err
		}
		if len(p.changes) == 0 {
			o.progress.Done("CredentialIssuer %q is configured like this already", st.issuer.Name)
			return st, p, nil, nil
		}
		if o.DryRun == dryRunClient {
			return st, p, nil, nil
		}
		applied, err := o.cluster.ApplyCredentialIssuer(ctx, st.issuer.Name, applyObject(st.issuer, p.wanted, o.request),
			discovery.ApplyOptions{FieldManager: fieldManager, Force: true, DryRun: o.DryRun == dryRunServer})
		switch {
		case err == nil:
			if o.DryRun == dryRunNone {
				o.progress.Done("Changed CredentialIssuer %q", st.issuer.Name)
			}
			return st, p, applied, nil
		case unknownVerification(err) && !o.request.withoutVerification:
			o.progress.Info("CredentialIssuer %q has no field %q: this agent does not verify the certificate's names itself", st.issuer.Name, "verification")
			o.request.withoutVerification = true
		case errors.Is(err, discovery.ErrConflict) && attempt < attempts:
			o.progress.Info("CredentialIssuer %q has changed meanwhile: looking again", st.issuer.Name)
		default:
			return nil, nil, nil, withCodes(fmt.Errorf("changing CredentialIssuer %q: %w", st.issuer.Name, err))
		}
	}
}

// unknownVerification recognises the answer of an API server whose CredentialIssuers have no field verification.
func unknownVerification(err error) bool {
	return strings.Contains(err.Error(), "tls.verification: field not declared in schema")
}

// look gathers and decides.
func (o *SetOptions) look(ctx context.Context, first bool) (*state, *plan, error) {
	st, err := gather(ctx, o.cluster, o.CredentialIssuer, o.request.namespace, o.request.secret)
	if err != nil {
		return nil, nil, err
	}
	st.now = o.Now()
	st.serverTime = o.serverTime(st.now)
	if o.request.loadBalancerIP != nil && serviceType(st.issuer.Spec.ImpersonationProxy) != configv1alpha1.ServiceTypeLoadBalancer {
		return nil, nil, ui.Usage(fmt.Errorf("--load-balancer-ip needs a Service of type LoadBalancer, but CredentialIssuer %q has type %s",
			st.issuer.Name, serviceType(st.issuer.Spec.ImpersonationProxy)))
	}
	p := decide(o.request, st)
	if ip := p.wanted.Service.LoadBalancerIP; ip != "" && p.wanted.ExternalEndpoint != "" {
		host, _, err := certs.ParseEndpoint(p.wanted.ExternalEndpoint)
		if err == nil {
			resolved, _ := o.Network.Resolve(ctx, host) // that it does not resolve is said while waiting
			p.report.Findings = append(p.report.Findings, certs.CheckLoadBalancerIP(ip, host, resolved)...)
		}
	}
	if first {
		o.progress.Done("Read Secret %q in namespace %q and CredentialIssuer %q", o.request.secret, o.request.namespace, st.issuer.Name)
	}
	o.say(p.report, st, p)
	return st, p, nil
}

// say prints what the checks have found.
func (o *SetOptions) say(report certs.Report, st *state, p *plan) {
	if report.Leaf != nil {
		o.progress.Info("Certificate for %s, valid until %s, SHA-256 %s", orNone(strings.Join(slices.Concat(report.DNSNames, report.IPAddresses), ", ")),
			report.NotAfter.Format(time.RFC3339), report.SHA256)
	}
	for _, finding := range report.Findings {
		text := finding.String()
		if finding.Hint != "" {
			text += " (" + finding.Hint + ")"
		}
		switch {
		case finding.Refuses():
			o.progress.Fail("%s", text)
		case finding.Allowed:
			o.progress.Warn("allowed: %s", text)
		case finding.Severity == certs.SeverityWarning:
			o.progress.Warn("%s", text)
		default:
			o.progress.Info("%s", text)
		}
	}
	if report.OK() {
		o.progress.Done("Checked the certificate")
		for _, manager := range otherManagers(st.issuer, p.changes) {
			o.progress.Warn("%q manages fields that change, too: if it is a tool that applies manifests, change them there as well, or it will put them back", manager)
		}
	}
}

// refusal returns the error for a report that refuses.
func (o *SetOptions) refusal(report certs.Report) error {
	errs := report.Errors()
	if len(errs) == 0 {
		return nil
	}
	first := errs[0]
	text := fmt.Errorf("%w: %s", errRefused, first)
	if more := len(errs) - 1; more > 0 {
		text = fmt.Errorf("%w (and %d more, see above)", text, more)
	}
	return ui.WithExitCode(ui.WithHint(text, "%s", refusalHint(first)), ui.ExitRefused)
}

func refusalHint(first certs.Finding) string {
	hint := first.Hint
	if hint != "" {
		hint += "; "
	}
	hint += fmt.Sprintf("nothing was changed; run %q for more", "pinniped explain "+string(first.Code))
	if certs.Allowable(first.Code) {
		hint += fmt.Sprintf(", or give --allow %s if you accept the consequence", first.Code)
	}
	return hint
}
