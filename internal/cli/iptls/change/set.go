package change

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// SetOptions holds the inputs of `pinniped ip-tls set`; a test fills it directly.
type SetOptions struct {
	Session     *session.Session
	Flags       Flags
	Certificate session.CertificateFlags

	Cert, Key       string // paths, or "-" for stdin
	OverwriteSecret bool
	Mode            string // of the proxy; empty: unchanged
	ServiceType     string // of the Service in front of it; empty: unchanged
	ActivateAfter   time.Duration

	request plan.Request
	files   *keyPair       // nil without --cert
	present *corev1.Secret // before the change, with --cert; nil if there was none
	written *secretChange  // what this run has changed in the Secret
	changed bool           // the CredentialIssuer has been changed

	mayNotList bool // cert-manager Certificates; already reported
}

// NewSetCommand returns `pinniped ip-tls set`.
func NewSetCommand(f *factory.Factory) *cobra.Command {
	o := &SetOptions{Session: session.New(f)}
	cmd := &cobra.Command{
		SuggestFor: []string{"rotate"},
		Use:        "set --secret [NAMESPACE/]NAME | --mode MODE | --service-type TYPE",
		Short:      "Serve the certificate in a Secret",
		Long: `Make the impersonation proxy serve the certificate in a Secret. NAME is a Secret in the agent's namespace.
NAMESPACE/NAME is one in another namespace, whose owner must permit its use ("pinniped ip-tls delegate").

The Secret has the keys tls.crt (the certificate, then its intermediates), tls.key, and optionally ca.crt. With --cert
and --key, the command writes these files into the Secret, and creates the Secret if necessary. Before the command
changes anything, it checks the certificate's key, dates, names and chain to the CA bundle, the effect on clients in
use, and more ("pinniped explain CODE" describes each check). If a check fails, nothing changes. --allow CODE
accepts the error with this code.

The agent serves a certificate from a new CA once no client would break (spec.impersonationProxy.tls.caTransition:
DualTrust). Until then, it serves the old certificate and publishes both trust bundles, so that new kubeconfigs work
with either certificate. The command exits with 6 and lists the clients that the agent waits for. Run the command again
to see the progress; it exits with 0 when the new certificate is served. The agent stops waiting when every revision in
use has the new CA. These flags can end the wait earlier:

  --activate-after 168h      when no revision without the new CA was used or published for this long
  --kubeconfigs PATH         when every kubeconfig for this endpoint below PATH verifies the new certificate
  --allow OldClientsBreak    at once; clients without the new CA break

If a cert-manager Certificate names the Secret in spec.secretName, and cert-manager is about to fill the Secret, the
command waits and shows cert-manager's progress. It also waits while cert-manager reissues an unsuitable certificate.
With --dry-run or --wait=false, it does not wait.

Clients verify the certificate with a CA bundle from a file (--ca-bundle), from another object that the agent watches
(--ca-bundle-from), or from the Secret's ca.crt (--ca-from-secret), or with their system roots (--system-roots).
Without these flags, the configured CA bundle stays.

After the checks, the command changes the CredentialIssuer by server-side apply (field manager "pinniped-cli"). It then
waits until the agent reports the CA bundle, and until every address of the endpoint presents the certificate. If that
takes too long, the command restores the previous configuration and the previous content of the Secret. If no agent is
running, the command changes nothing, unless you pass --wait=false.

If the proxy is off ("mode: disabled", or "auto" where control-plane nodes are visible), the command changes the
configuration and exits with 7. "ip-tls set --mode enabled" turns the proxy on with the configured certificate.

--service-type sets how clients reach the proxy: through a cloud's load balancer (LoadBalancer), inside the cluster
(ClusterIP), or in a way that the agent does not know (None). With None, --external-endpoint names the address.

Exit codes: 0 served or unchanged, 3 refused, 5 not in effect in time, 6 in transition, 7 the proxy is switched off
(see "pinniped help exit-codes")`,
		Example: `  # The certificate and its CA come from cert-manager, which puts the CA into ca.crt of the Secret
  pinniped ip-tls manifest --issuer ClusterIssuer/my-ca --external-endpoint proxy.example.com | kubectl apply -f -
  pinniped ip-tls set --secret proxy-tls --external-endpoint proxy.example.com

  # A certificate from the company's own PKI, in files
  pinniped ip-tls set --secret proxy-tls --cert fullchain.pem --key key.pem \
    --ca-bundle company-ca.pem --external-endpoint proxy.example.com:8443

  # A public CA's certificate: clients need no CA bundle
  pinniped ip-tls set --secret proxy-tls --cert fullchain.pem --key key.pem --system-roots

  # A certificate from a new CA; repeat until it exits with 0
  pinniped ip-tls set --secret proxy-tls-2027 --ca-bundle ca-2027.pem --activate-after 168h

  # Turn the proxy on with the configured certificate
  pinniped ip-tls set --mode enabled

  # The cluster has no load balancer: an ingress passes TLS through to the Service
  pinniped ip-tls set --service-type ClusterIP

  # Only show what would happen
  pinniped ip-tls set --secret proxy-tls --ca-bundle company-ca.pem --dry-run --diff

  # In a script
  pinniped ip-tls set --secret proxy-tls --timeout 5m -o json`,
		Args: func(cmd *cobra.Command, args []string) error {
			err := factory.NoArgs(cmd, args)
			if len(args) == 1 {
				err = ui.WithHint(err, "name the Secret with a flag: --secret %s", args[0])
			}
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Certificate.Changed = cmd.Flags().Changed
			return factory.Execute(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Cert, "cert", "",
		`PEM file with the certificate, then its intermediates, to write into the Secret ("-" for stdin)`)
	flags.StringVar(&o.Key, "key", "", `PEM file with the private key of --cert ("-" for stdin)`)
	flags.BoolVar(&o.OverwriteSecret, "overwrite-secret", false,
		"with --cert: overwrite the Secret even if cert-manager or another program manages it")
	flags.StringVar(&o.Mode, "mode", "", "when the impersonation proxy runs: \"enabled\", \"auto\" or "+
		"\"disabled\" (default: unchanged)")
	flags.StringVar(&o.ServiceType, "service-type", "", "Service in front of the impersonation proxy: "+
		"\"LoadBalancer\", \"ClusterIP\" or \"None\" (default: unchanged)")
	flags.DurationVar(&o.ActivateAfter, "activate-after", 0, "serve the new certificate once every revision whose "+
		"clients would break has been unused and unpublished for this long, such as 168h (default: unchanged)")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"activate-after": cobra.NoFileCompletions,
		"mode":           factory.CompleteValues(modes...), "service-type": factory.CompleteValues(serviceTypes...),
	})
	o.Certificate.AddFlags(cmd, "Secret with the certificate: NAME in the agent's namespace, or NAMESPACE/NAME "+
		"(default: the configured one)",
		`CA bundle to publish to clients: a PEM file, or "-" for stdin (default: the CredentialIssuer's, `+
			`else ca.crt of the Secret, else none)`)
	o.Flags.AddFlags(cmd, f, o.Session)
	o.Session.CompleteSecrets(cmd, f)
	return cmd
}

// The values of --mode and --service-type.
var (
	modes        = []string{"enabled", "auto", "disabled"}
	serviceTypes = []string{"LoadBalancer", "ClusterIP", "None"}
)

// Validate checks the flags.
func (o *SetOptions) Validate() error {
	if o.Certificate.Secret == "" && (o.Cert != "" || !o.withoutCertificate() && !o.changesCertificate()) {
		hint := hintSecret
		if o.Cert != "" {
			hint = "name a new or existing Secret to write the certificate to: --secret proxy-tls"
		}
		return ui.WithHint(ui.Usage(errNoSecret), "%s", hint)
	}
	switch {
	case o.Cert != "" && o.Key == "":
		return ui.WithHint(ui.Usage(errors.New("--cert needs --key")),
			"also pass the certificate's private key: --key key.pem")
	case o.Cert == "" && o.Key != "":
		return ui.WithHint(ui.Usage(errors.New("--key needs --cert")), "also pass the certificate: --cert fullchain.pem")
	case o.Cert == "" && o.OverwriteSecret:
		return ui.Usage(errors.New("--overwrite-secret needs --cert and --key"))
	case o.ActivateAfter < 0:
		return ui.Usage(fmt.Errorf("invalid value %q for --activate-after: it is negative", o.ActivateAfter))
	}
	oneOf := func(flag, value string, accepted []string) error {
		if value == "" {
			return nil
		}
		return factory.CheckOneOf(flag, value, accepted...)
	}
	return cmp.Or(o.Flags.Validate(o.Session), oneOf("mode", o.Mode, modes),
		oneOf("service-type", o.ServiceType, serviceTypes), o.Certificate.Validate())
}

// Complete turns the flags into a request: it reads the files and loads the kubeconfig.
func (o *SetOptions) Complete() error {
	err := session.OneFromStdin(map[string]string{"cert": o.Cert, "key": o.Key, "ca-bundle": o.Certificate.CABundle})
	if err != nil {
		return err
	}
	if o.request, err = o.Certificate.Request(o.Session.In); err != nil {
		return err
	}
	if o.Certificate.Changed("activate-after") {
		o.request.ActivateAfter = &o.ActivateAfter
	}
	o.request.Mode = configv1alpha1.ImpersonationProxyMode(o.Mode)
	o.request.ServiceType = configv1alpha1.ImpersonationProxyServiceType(o.ServiceType)
	if o.Cert != "" {
		o.files = &keyPair{}
		o.files.cert, err = session.ReadPEMFile("the certificate", o.Cert, o.Session.In)
		if err == nil {
			o.files.key, err = session.ReadPEMFile("the private key", o.Key, o.Session.In)
		}
		if err != nil {
			return err
		}
		o.request.WritesSecret, o.request.Sources.Certificate, o.request.Sources.Key = true, "--cert", "--key"
	}
	return o.Session.Open()
}

var errNoSecret = errors.New("--secret is missing")

const hintSecret = "name the Secret with the certificate: --secret proxy-tls"

// useConfigured uses the Secret in the CredentialIssuer if --secret is missing.
func (o *SetOptions) useConfigured(ctx context.Context) error {
	if o.request.Secret != "" || o.withoutCertificate() {
		return nil
	}
	ctx, cancel := factory.WithTimeout(ctx, o.Session.Timeout)
	defer cancel()
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return err
	}
	tls := issuer.Spec.ImpersonationProxy.TLS
	if plan.ServesGenerated(tls) {
		return ui.WithHint(ui.Usage(fmt.Errorf("%w, and CredentialIssuer %q names no Secret", errNoSecret, issuer.Name)),
			hintSecret)
	}
	o.request.Secret = tls.SecretName
	return nil
}

// Run checks, applies, waits and prints.
func (o *SetOptions) Run(ctx context.Context) error {
	err := o.refuseFiles()
	if err == nil {
		err = o.useConfigured(ctx)
	}
	if err == nil {
		err = o.change().run(ctx, &o.request)
	}
	if err != nil && o.written != nil && !o.changed {
		// The Secret is written, but not the CredentialIssuer: undo half a change.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		if undone := o.undoWritten(ctx); undone != nil {
			return fmt.Errorf("%w; %w", err, undone)
		}
	}
	return err
}

func (o *SetOptions) change() *Change {
	return &Change{Session: o.Session, Flags: o.Flags, Evaluate: o.evaluate, Apply: o.apply}
}

// apply writes the files into the Secret, and changes the CredentialIssuer: both or neither, even if interrupted.
func (o *SetOptions) apply(ctx context.Context, p *Proposal) (*configv1alpha1.CredentialIssuer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyTimeout)
	defer cancel()
	if o.withoutCertificate() {
		return o.change().merge(ctx, p)
	}
	if err := o.applySecret(ctx, p); err != nil {
		return nil, err
	}
	if o.written != nil {
		p.PutBack = o.undoWritten
	}
	if len(plan.ChangesBetween(*p.Snapshot.Issuer.Spec.ImpersonationProxy, p.Plan.Wanted)) == 0 {
		o.changed = true // the agent watches the Secret
		return p.Snapshot.Issuer, nil
	}
	applied, err := o.Session.Cluster.ApplyCredentialIssuer(ctx, p.Snapshot.Issuer.Name,
		plan.ApplyObject(p.Snapshot.Issuer, p.Plan.Wanted, o.request),
		discovery.ApplyOptions{FieldManager: plan.FieldManager, Force: true, DryRun: o.Flags.DryRun == session.DryRunServer})
	o.changed = err == nil && o.Flags.DryRun == session.DryRunNone
	return applied, err
}

// applyTimeout limits the writes, which are not interrupted.
const applyTimeout = 30 * time.Second

// applySecret writes the files into the Secret if it differs.
func (o *SetOptions) applySecret(ctx context.Context, p *Proposal) error {
	if o.files == nil || len(writtenKeys(o.present, p.Snapshot.Secret)) == 0 {
		return nil
	}
	dryRun := o.Flags.DryRun == session.DryRunServer
	after, err := writeSecret(ctx, o.Session.Cluster, o.present, p.Snapshot.Secret, dryRun)
	if err != nil {
		secret := p.Snapshot.Secret
		failed := &secretError{name: secret.Namespace + "/" + secret.Name, error: err}
		if o.present != nil || !errors.Is(err, discovery.ErrForbidden) {
			return failed
		}
		// The user may update a Secret but not create one. A user who can create Secrets in the agent's namespace is
		// effectively an administrator, so no Role for this command permits it.
		return ui.WithHint(session.WithCodes(failed),
			"have an administrator create it once, empty: kubectl create secret generic %s --namespace=%s --type=%s "+
				"--from-literal=tls.crt= --from-literal=tls.key=", secret.Name, secret.Namespace, corev1.SecretTypeTLS)
	}
	if dryRun {
		return nil
	}
	o.Session.Progress.Done("Wrote the certificate and its key into Secret %q", o.request.Secret)
	if o.written == nil {
		o.written = &secretChange{before: o.present}
	}
	o.written.after, p.Snapshot.Secret = after, after
	return nil
}

func (o *SetOptions) undoWritten(ctx context.Context) error {
	return o.written.undo(ctx, o.Session.Cluster, o.Session.Progress)
}

// evaluate reads the cluster, and evaluates the configuration.
func (o *SetOptions) evaluate(ctx context.Context, first bool) (*Proposal, error) {
	if o.withoutCertificate() {
		return o.evaluateProxy(ctx, first)
	}
	if name := o.request.SecretName(); o.files != nil && name.Namespace != o.request.Namespace {
		return nil, ui.WithHint(ui.Usage(fmt.Errorf("--cert cannot be written into Secret %q, which is in another namespace",
			name)), "let the owner of that namespace write the Secret, or name a Secret in namespace %q", o.request.Namespace)
	}
	st, p, err := o.gatherAndEvaluate(ctx)
	if err != nil {
		return nil, err
	}
	if o.files != nil {
		before := o.present
		if o.written != nil {
			before = o.written.before // before the first attempt of this run
		}
		ofSecret := changesOfSecret(before, st.Secret)
		p.Changes = append(ofSecret, p.Changes...)
		if before != nil && len(ofSecret) > 0 && first && o.Flags.DryRun == session.DryRunNone {
			o.Session.Progress.Warn(
				`the content of Secret %q is overwritten, and "pinniped ip-tls undo" does not restore it`, o.request.Secret)
		}
	}
	if first && !st.NotPermitted() {
		name := o.request.SecretName()
		if st.Secret == nil || o.files != nil && o.present == nil {
			o.Session.Progress.Done("Read CredentialIssuer %q", st.Issuer.Name)
		} else {
			o.Session.Progress.Done("Read Secret %q in namespace %q and CredentialIssuer %q", name.Name,
				name.Namespace, st.Issuer.Name)
		}
	}
	if first && st.WithoutVerification {
		o.Session.Progress.Info("CredentialIssuer %q has no field %q, so this agent does not verify the certificate's "+
			"names itself", st.Issuer.Name, "verification")
	}
	Say(o.Session.Progress, st, p)
	return &Proposal{Snapshot: st, Plan: p, Outcome: result.OutcomeConfigured}, nil
}

// withoutCertificate reports whether the flags change only the mode, the Service or its endpoint.
func (o *SetOptions) withoutCertificate() bool {
	return (o.Mode != "" || o.ServiceType != "") && o.Certificate.Secret == "" && o.Cert == "" && o.Key == "" &&
		!o.changesCertificate()
}

// changesCertificate reports whether a flag changes a setting of the configured Secret.
func (o *SetOptions) changesCertificate() bool {
	flags := []string{"ca-bundle", "ca-bundle-from", "ca-from-secret", "system-roots", "activate-after"}
	if o.ServiceType == "" {
		flags = append(flags, "external-endpoint", "load-balancer-ip")
	}
	return slices.ContainsFunc(flags, o.Certificate.Changed)
}

// evaluateProxy evaluates a change of mode, Service or endpoint. Disabling the proxy needs no valid certificate.
func (o *SetOptions) evaluateProxy(ctx context.Context, first bool) (*Proposal, error) {
	st, wanted, err := o.gather(ctx)
	if err != nil {
		return nil, err
	}
	p := plan.Evaluate(o.request, st, wanted)
	if o.Mode != "" && wanted.Mode == configv1alpha1.ImpersonationProxyModeDisabled {
		p.Report.Findings = slices.DeleteFunc(p.Report.Findings, certs.Finding.Refuses)
	}
	if first {
		o.Session.Progress.Done("Read CredentialIssuer %q, with %s", st.Issuer.Name, plan.Describe(&wanted))
	}
	Say(o.Session.Progress, st, p)
	return &Proposal{Snapshot: st, Plan: p, Outcome: result.OutcomeConfigured}, nil
}
