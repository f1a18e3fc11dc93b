// Package check implements `pinniped ip-tls check`: the certificate checks for a cluster, files, or an endpoint.
package check

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Options holds the inputs of `pinniped ip-tls check`; a test fills it directly.
type Options struct {
	Session     *session.Session
	Certificate session.CertificateFlags
	Cert, Key   []string // paths, in pairs
	Names       []string // with --cert: names that clients use
	Endpoint    string   // HOST or HOST:PORT to probe
	At          string
	Timeline    bool
	FailOn      string // "error" or "warning"; empty is "error"
	Within      string // --expires-within: days (30d), or a time.ParseDuration text
	Style       ui.Style

	request plan.Request
	within  time.Duration // --expires-within
	at      time.Time     // zero: now
}

// NewCommand returns `pinniped ip-tls check`.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{Session: session.New(f)}
	cmd := &cobra.Command{
		Use: "check", Short: "Check the serving certificate without changing anything",
		Long: `Check a certificate as "pinniped ip-tls set" does, without changing anything. Flags select the certificate:

  - without flags, the configured one. With --secret, --ca-bundle, --external-endpoint and so on, the one that
    "ip-tls set" with these flags would configure.
  - with --cert, the one in a file. The command needs no cluster. If --key or --name is missing, it skips the checks
    that need the flag, and the output says so. For several files, repeat --cert, and pass either no --key, or one for
    each --cert in the same order.
  - with --endpoint, the one that each address of a host presents now. The command needs no cluster, and verifies the
    certificate with --ca-bundle, or else with the system roots.

--at checks the certificate as of another time. --timeline also lists what will fail, and when, if nothing is renewed.
--expires-within reports an error if the certificate, or a CA that clients need, expires within this time.

Exit codes: 0 good, 3 refused, or a warning with --fail-on warning (see "pinniped help exit-codes")`,
		Example: `  # The configured certificate, then another Secret
  pinniped ip-tls check
  pinniped ip-tls check --secret proxy-tls-new --ca-bundle old-and-new-ca.pem

  # Files, in the CI pipeline of a pull request
  pinniped ip-tls check --cert fullchain.pem --key key.pem --ca-bundle company-ca.pem --name proxy.example.com

  # All files of a repository; fail on a warning, or if any certificate expires within a month
  pinniped ip-tls check --cert east.pem --cert west.pem --ca-bundle company-ca.pem --expires-within 30d --fail-on warning

  # What the endpoint presents right now
  pinniped ip-tls check --endpoint proxy.example.com:8443 --ca-bundle company-ca.pem

  # Is the certificate valid over the holidays? What breaks first?
  pinniped ip-tls check --at 2027-01-07
  pinniped ip-tls check --timeline`,
		Args: factory.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			o.Certificate.Changed, o.Style = cmd.Flags().Changed, f.Style(f.Out)
			return factory.Execute(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	o.Certificate.AddFlags(cmd,
		"Secret with the certificate: NAME in the agent's namespace, or NAMESPACE/NAME (default: the configured one)",
		`CA bundle that clients verify with: a PEM file, or "-" for stdin (default: as in the cluster; with --cert or `+
			`--endpoint, the system roots)`)
	flags.StringArrayVar(&o.Cert, "cert", nil,
		`PEM file with the certificate, then its intermediates ("-" for stdin; repeatable)`)
	flags.StringArrayVar(&o.Key, "key", nil, `PEM file with the private key (one for each --cert, in the same order)`)
	flags.StringArrayVar(&o.Names, "name", nil, "with --cert: DNS name or IP address that clients use (repeatable)")
	flags.StringVar(&o.Endpoint, "endpoint", "", "HOST or HOST:PORT: check what each of its addresses presents")
	flags.StringVar(&o.At, "at", "", "check the certificate as of this time: 2027-01-31 or 2027-01-31T08:00:00Z "+
		"(default: now)")
	flags.BoolVar(&o.Timeline, "timeline", false, "also list what will fail, and when, if nothing is renewed")
	flags.StringVar(&o.FailOn, "fail-on", "error", "lowest severity that leads to exit code 3: error or warning")
	flags.StringVar(&o.Within, "expires-within", "", "report an error if the certificate, or a CA that clients need, "+
		"expires within this time, such as 30d or 720h")
	none := cobra.NoFileCompletions
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"fail-on":  factory.CompleteValues("error", "warning"),
		"endpoint": none, "name": none, "at": none, "expires-within": none,
	})
	o.Session.AddFlags(cmd, f, 30*time.Second, factory.Formats()...)
	o.Session.CompleteSecrets(cmd, f)
	return cmd
}

// Validate checks the flags.
func (o *Options) Validate() error {
	err := cmp.Or(o.Session.Validate(factory.Formats()...), o.Certificate.Validate(), o.validateSource(),
		session.ValidateEndpoint("endpoint", o.Endpoint))
	for _, name := range o.Names {
		err = cmp.Or(err, validateName(name))
	}
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"", "error", "warning"}, o.FailOn) {
		return ui.Usage(fmt.Errorf(`invalid value %q for --fail-on: supported values are "error" and "warning"`, o.FailOn))
	}
	if o.within, err = parseSpan(o.Within); o.Within != "" && err != nil {
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --expires-within: %w", o.Within, err)),
			"write 30d for 30 days, or 12h")
	}
	if o.At == "" {
		return nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if o.at, err = time.Parse(layout, o.At); err == nil {
			return nil
		}
	}
	return ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --at: not a time", o.At)),
		"write 2027-01-31, or 2027-01-31T08:00:00Z")
}

func parseSpan(text string) (time.Duration, error) {
	const day = 24 * time.Hour
	if count, ok := strings.CutSuffix(text, "d"); ok {
		days, err := strconv.ParseUint(count, 10, 32)
		if err != nil {
			return 0, errors.New("not a number of days")
		}
		if days == 0 || days > uint64(math.MaxInt64/day) {
			return 0, errors.New("not a number of days from 1 to 106751")
		}
		return time.Duration(days) * day, nil
	}
	span, err := time.ParseDuration(text)
	if err != nil {
		return 0, errors.New("not a time span")
	}
	if span <= 0 {
		return 0, errors.New("not a positive duration")
	}
	return span, nil
}

func validateName(name string) error {
	if _, err := netip.ParseAddr(name); err == nil {
		return nil
	}
	_, port, err := certs.ParseEndpoint(name)
	if inner := errors.Unwrap(err); inner != nil {
		err = inner // without "endpoint", which it is not
	}
	if err == nil && port != "" {
		err = errors.New("it has a port")
	}
	if err != nil {
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --name: %w", name, err)),
			"write a DNS name or an IP address, without a port")
	}
	return nil
}

// validateSource permits one source of the certificate, and only flags that apply to it.
func (o *Options) validateSource() error {
	for _, source := range []struct {
		flag     string
		excluded []string
	}{
		{"cert", []string{"endpoint", "secret", "ca-from-secret", "load-balancer-ip"}},
		{"endpoint", []string{"key", "secret", "ca-from-secret", "external-endpoint", "load-balancer-ip", "name"}},
	} {
		if !o.Certificate.Changed(source.flag) {
			continue
		}
		if at := slices.IndexFunc(source.excluded, o.Certificate.Changed); at >= 0 {
			return ui.Usage(fmt.Errorf("--%s and --%s cannot be combined", source.flag, source.excluded[at]))
		}
		if len(o.Key) > 0 && len(o.Key) != len(o.Cert) {
			return ui.WithHint(ui.Usage(fmt.Errorf("--cert is given %d times, --key %d times", len(o.Cert), len(o.Key))),
				"pass one --key for each --cert, in the same order, or none")
		}
		return nil
	}
	needing := []string{"key", "name"}
	if at := slices.IndexFunc(needing, o.Certificate.Changed); at >= 0 {
		return ui.WithHint(ui.Usage(fmt.Errorf("--%s needs --cert", needing[at])),
			"also pass the certificate: --cert fullchain.pem")
	}
	return nil
}

// Complete turns the flags into a request. It loads the kubeconfig only if the cluster is needed.
func (o *Options) Complete() error {
	once := map[string]string{"ca-bundle": o.Certificate.CABundle}
	for flag, paths := range map[string][]string{"cert": o.Cert, "key": o.Key} {
		dashes := slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return path != "-" })
		if len(dashes) > 1 {
			return ui.Usage(fmt.Errorf("only one --%s can be read from stdin", flag))
		}
		once[flag] = strings.Join(dashes, "")
	}
	err := session.OneFromStdin(once)
	if err != nil {
		return err
	}
	if o.request, err = o.Certificate.Request(o.Session.In); err != nil {
		return err
	}
	o.request.ExpiresWithin = o.within
	if o.Certificate.Changed("cert") || o.Certificate.Changed("endpoint") {
		o.Session.Progress = o.Session.NewProgress()
		return nil
	}
	return o.Session.Open()
}

// Run collects, checks and prints.
func (o *Options) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Session.Timeout)
	defer cancel()
	collect := o.checkCluster
	if o.Certificate.Changed("cert") {
		collect = o.checkFiles
	} else if o.Certificate.Changed("endpoint") {
		collect = o.checkEndpoint
	}
	checked, err := collect(ctx)
	if err != nil {
		return err
	}
	o.conclude(checked)
	return o.Session.Print(checked, o.refusal(checked), func() ([]byte, error) { return o.text(checked), nil })
}

// refusal returns an error if findings make the command fail. An unreachable endpoint is no verdict on a certificate:
// if nothing else is wrong, the check itself has failed.
func (o *Options) refusal(checked *result.Check) error {
	var unreachable *certs.Finding
	for _, s := range checked.Subjects {
		switch errs := s.Certificate.Errors(); {
		case slices.ContainsFunc(errs, judges):
			return o.named(s, plan.Refusal(s.Certificate, ""))
		case len(errs) > 0 && unreachable == nil:
			unreachable = &errs[0]
		}
	}
	if unreachable != nil {
		return ui.WithHint(fmt.Errorf("some addresses were not checked: %s", unreachable), "%s", unreachable.Hint)
	}
	for _, s := range checked.Subjects {
		if first := slices.IndexFunc(s.Certificate.Findings, o.fails); first >= 0 {
			f := s.Certificate.Findings[first]
			return o.named(s, ui.WithExitCode(ui.WithHint(fmt.Errorf("--fail-on warning is set, and there is a warning: %s",
				f), "%s", f.Hint), ui.ExitRefused))
		}
	}
	return nil
}

func (o *Options) named(s result.CheckedCertificate, err error) error {
	if len(o.Cert) < 2 {
		return err
	}
	return fmt.Errorf("%s: %w", s.Name, err)
}

func (o *Options) now() time.Time { return cmp.Or(o.at, o.Session.Now()) }

// checkCluster checks the configured certificate, or what the flags would configure.
func (o *Options) checkCluster(ctx context.Context) (*result.Check, error) {
	req := o.request
	if err := o.Session.Locate(ctx, &req); err != nil {
		return nil, err
	}
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return nil, err
	}
	if err := session.Fits(req, issuer); err != nil {
		return nil, err
	}
	wanted := req.On(issuer.Spec.ImpersonationProxy)
	if plan.ServesGenerated(wanted.TLS) {
		return o.checkGenerated(ctx, issuer)
	}
	st, err := o.Session.Gather(ctx, issuer, req.Namespace, wanted)
	if err != nil {
		return nil, err
	}
	if err := plan.FitsSecret(req, st.Secret); err != nil {
		return nil, err
	}
	if !o.at.IsZero() {
		st.Now, st.ServerTime = o.at, time.Time{}
	}
	wanted.TLS = st.ForSet(wanted.TLS)
	p := plan.Evaluate(req, st, wanted)
	subject := result.CheckedCertificate{Name: "Secret " + p.Request.SecretName().String(), Certificate: p.Report}
	if st.Secret != nil && o.Timeline {
		subject.Timeline = certs.Timeline(p.Checks)
	}
	checked := o.newResult(result.SourceCluster, p.Bundle, subject)
	checked.CredentialIssuer = st.Issuer.Name
	return checked, nil
}

func (o *Options) newResult(from result.Source, bundle []byte, subjects ...result.CheckedCertificate) *result.Check {
	return &result.Check{Source: from, At: o.now().UTC(), CABundle: result.BundleOf(bundle), Subjects: subjects}
}

// check checks a certificate that is not from the cluster.
func (o *Options) check(name string, in certs.Input) result.CheckedCertificate {
	in.Now, in.Allow, in.ExpiresWithin = o.now(), o.request.Allow, o.within
	subject := result.CheckedCertificate{Name: name, Certificate: certs.Check(in)}
	if o.Timeline {
		subject.Timeline = certs.Timeline(in)
	}
	return subject
}

// checkGenerated checks the endpoint while the agent serves its generated certificate.
func (o *Options) checkGenerated(ctx context.Context, issuer *configv1alpha1.CredentialIssuer) (*result.Check, error) {
	endpoint, bundle, _ := serving.Frontend(serving.Strategy(issuer))
	if endpoint == "" {
		return nil, ui.WithHint(fmt.Errorf("CredentialIssuer %q names no certificate, and the agent publishes no endpoint "+
			"for its generated one", issuer.Name),
			"name the Secret to check with --secret, or see %q", "pinniped ip-tls status")
	}
	at, err := plan.ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	checked, err := o.checkAddresses(ctx, at, bundle)
	if err == nil {
		checked.CredentialIssuer = issuer.Name
	}
	return checked, err
}

func (o *Options) checkEndpoint(ctx context.Context) (*result.Check, error) {
	host, port, err := certs.ParseEndpoint(o.Endpoint)
	if err != nil {
		return nil, ui.Usage(err)
	}
	return o.checkAddresses(ctx, plan.Endpoint{Host: host, Port: cmp.Or(port, "443")}, o.request.Bundle)
}

func (o *Options) checkAddresses(ctx context.Context, at plan.Endpoint, bundle []byte) (*result.Check, error) {
	checked := o.newResult(result.SourceEndpoint, bundle)
	checked.NotChecked = []string{"the private key: only the server has it"}
	served, skipped, err := session.Probe(ctx, o.Session.Network, at)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("checking %s: %w", at, ctx.Err())
	}
	if err == nil && len(served) == 0 && len(skipped) > 0 {
		err = errors.New("there is no route to it from here")
	}
	if err != nil {
		served = []certs.Served{{Address: at.String(), Err: err}}
	}
	for _, address := range skipped {
		checked.NotChecked = append(checked.NotChecked, address+": there is no route to it from here")
	}
	if len(served) == 0 {
		findings := certs.CheckServed(certs.Expected{Host: at.Host}, nil)
		checked.Subjects = []result.CheckedCertificate{{Name: at.String(), Certificate: certs.Report{Findings: findings}}}
	}
	leaves := map[string]bool{}
	for _, same := range alike(served) {
		checked.Subjects = append(checked.Subjects, o.checkServed(at, bundle, same))
		if len(same[0].Chain) > 0 {
			leaves[certs.Fingerprint(same[0].Chain[0].Raw)] = true
		}
	}
	if len(leaves) > 1 {
		f := certs.NewFinding(certs.EndpointServesOther,
			fmt.Sprintf("the addresses of %s present %d different certificates", at, len(leaves)))
		f.Severity = certs.SeverityWarning // normal during a rollout
		last := &checked.Subjects[len(checked.Subjects)-1].Certificate
		last.Findings = append(last.Findings, f)
	}
	return checked, nil
}

// checkServed checks the chain that all addresses in same present. If they present none, the findings say why.
func (o *Options) checkServed(at plan.Endpoint, bundle []byte, same []certs.Served) result.CheckedCertificate {
	addresses := make([]string, len(same))
	for i, one := range same {
		addresses[i] = one.Address
	}
	name := strings.Join(addresses, ", ")
	if len(same[0].Chain) == 0 {
		findings := certs.CheckServed(certs.Expected{Host: at.Host, Now: o.now()}, same)
		return result.CheckedCertificate{Name: name, Certificate: certs.Report{Findings: findings}}
	}
	var chain []byte
	for _, certificate := range same[0].Chain {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})...)
	}
	return o.check(name, certs.Input{
		CertPEM: chain, NoKey: true, Bundle: bundle, Sources: certs.Sources{Certificate: "the presented chain"},
		Names: []certs.Name{{Value: at.Host, Source: "the endpoint"}},
	})
}

// alike groups the addresses by the chain that they present, in order of their first addresses.
func alike(served []certs.Served) [][]certs.Served {
	var groups [][]certs.Served
	for _, one := range served {
		place := slices.IndexFunc(groups, func(group []certs.Served) bool {
			return len(one.Chain) > 0 && slices.EqualFunc(group[0].Chain, one.Chain, (*x509.Certificate).Equal)
		})
		if place < 0 {
			place, groups = len(groups), append(groups, nil)
		}
		groups[place] = append(groups[place], one)
	}
	return groups
}

func (o *Options) checkFiles(context.Context) (*result.Check, error) {
	checked := o.newResult(result.SourceFile, o.request.Bundle)
	if len(o.Key) == 0 {
		checked.NotChecked = append(checked.NotChecked, "the private key, and a handshake with it: pass the key as --key")
	}
	if len(o.Names) == 0 && o.Certificate.ExternalEndpoint == "" {
		checked.NotChecked = append(checked.NotChecked, "the names that clients use: pass each as --name")
	}
	checked.NotChecked = append(checked.NotChecked, "existing kubeconfigs: only the cluster knows their CA bundle")
	var names []certs.Name
	for _, name := range o.Names {
		names = append(names, certs.Name{Value: name, Source: "--name"})
	}
	sources := certs.Sources{Certificate: "--cert", Key: "--key", Bundle: "--ca-bundle", Endpoint: "--external-endpoint"}
	for i, path := range o.Cert {
		in := certs.Input{
			NoKey: len(o.Key) == 0 || o.Key[i] == "", Bundle: o.request.Bundle, Names: names,
			Endpoint: o.Certificate.ExternalEndpoint, Sources: sources,
		}
		var err error
		if in.CertPEM, err = session.ReadPEMFile("the certificate", path, o.Session.In); err != nil {
			return nil, err
		}
		if !in.NoKey {
			if in.KeyPEM, err = session.ReadPEMFile("the private key", o.Key[i], o.Session.In); err != nil {
				return nil, err
			}
		}
		checked.Subjects = append(checked.Subjects, o.check(path, in))
	}
	return checked, nil
}
