package iptls

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// SetOptions is everything `pinniped ip-tls set` needs; a test fills it directly.
type SetOptions struct {
	Changing
	Candidate

	Cert, Key       string // paths, or "-" for stdin: what goes into the Secret
	OverwriteSecret bool

	request request
	files   *keyPair       // nil without --cert
	present *corev1.Secret // as it was found, with --cert; nil when there was none
	written *secretChange  // what this run has done to the Secret
	changed bool           // the CredentialIssuer has been changed, too
}

func newSetCommand(f *factory.Factory) *cobra.Command {
	o := &SetOptions{Changing: Changing{Connection: connection(f)}}
	cmd := &cobra.Command{
		Use:   "set --secret [NAMESPACE/]NAME",
		Short: "Put the certificate in a Secret in front of the impersonation proxy",
		Long: `Put the certificate in a Secret in front of the impersonation proxy. NAME is a Secret of the agent's namespace; one of another
namespace is NAMESPACE/NAME, and its owner must permit that ("pinniped ip-tls delegate").

The Secret has the keys tls.crt (the certificate, then its intermediates) and tls.key, and perhaps ca.crt. With
--cert and --key, the certificate in these files is written into the Secret, which is made if there is none. Before anything is
changed, the certificate is checked: key, dates, names under which clients connect, chain to the CA bundle that clients will be
given, kubeconfigs handed out so far, and more ("pinniped explain CODE" tells about each). A certificate that does not fit is
refused, and nothing is changed. --allow lets one kind of error through.

Clients verify the certificate with the CA bundle of --ca-bundle, with ca.crt of the Secret (--ca-from-secret), or with the roots
of their system (--system-roots). Without any of these, it stays what it is.

Then the CredentialIssuer is changed (by server-side apply, as field manager "pinniped-cli"), and the command waits until the
agent reports the CA bundle and every address of the endpoint presents this very certificate. If that does not happen in time,
the previous configuration is put back, and so is what was in the Secret.

Exit codes: 0 done or unchanged, 1 failed, 2 wrong usage, 3 refused by a check, 4 not permitted by the cluster,
5 did not take effect in time, 124 timed out before anything was changed, 130 interrupted.`,
		Example: `  # The certificate and its CA come from cert-manager, which puts the CA into ca.crt of the Secret
  pinniped ip-tls set --secret proxy-tls --external-endpoint proxy.example.com

  # A certificate of the company's own PKI, from files
  pinniped ip-tls set --secret proxy-tls --cert fullchain.pem --key key.pem \
    --ca-bundle company-ca.pem --external-endpoint proxy.example.com:8443

  # A certificate of a public CA: clients need no CA bundle
  pinniped ip-tls set --secret proxy-tls --cert fullchain.pem --key key.pem --system-roots

  # Only look at what would happen
  pinniped ip-tls set --secret proxy-tls --ca-bundle company-ca.pem --dry-run --diff

  # In a script
  pinniped ip-tls set --secret proxy-tls --timeout 5m -o json`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Changed = cmd.Flags().Changed
			return execute(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Cert, "cert", "", `file with the certificate, then its intermediates, in PEM, to write into the Secret ("-" for stdin)`)
	flags.StringVar(&o.Key, "key", "", `file with the private key of --cert, in PEM ("-" for stdin)`)
	flags.BoolVar(&o.OverwriteSecret, "overwrite-secret", false, "with --cert, also overwrite a Secret that cert-manager or another program looks after")
	o.Candidate.addFlags(cmd, "Secret with the certificate: NAME in the agent's namespace, or NAMESPACE/NAME (required)",
		`CA bundle to advertise to clients: a PEM file, or "-" for stdin (default: what the CredentialIssuer has, else ca.crt of the Secret, else none)`)
	o.Changing.addFlags(cmd, f)
	completeSecrets(cmd, f, &o.Connection)
	return cmd
}

// Validate checks the flags before anything is read.
func (o *SetOptions) Validate() error {
	if o.Secret == "" {
		hint := "name the Secret with the certificate: --secret proxy-tls"
		if o.Cert != "" {
			hint = "name the Secret to write the certificate into, a new one or one that is there: --secret proxy-tls"
		}
		return ui.WithHint(ui.Usage(errors.New("--secret is missing")), "%s", hint)
	}
	switch {
	case o.Cert != "" && o.Key == "":
		return ui.WithHint(ui.Usage(errors.New("--cert needs --key")), "give the file with the certificate's private key, too: --key key.pem")
	case o.Cert == "" && o.Key != "":
		return ui.WithHint(ui.Usage(errors.New("--key needs --cert")), "give the file with the certificate, too: --cert fullchain.pem")
	case o.Cert == "" && o.OverwriteSecret:
		return ui.Usage(errors.New("--overwrite-secret needs --cert and --key"))
	}
	if err := o.Changing.validate(); err != nil {
		return err
	}
	return o.Candidate.validate()
}

// Complete turns the flags into a request: it reads the CA bundle and loads the kubeconfig.
func (o *SetOptions) Complete() error {
	err := oneFromStdin(map[string]string{"cert": o.Cert, "key": o.Key, "ca-bundle": o.CABundle})
	if err != nil {
		return err
	}
	if o.request, err = o.asRequest(o.In); err != nil {
		return err
	}
	if o.files, err = o.readKeyPair(); err != nil {
		return err
	}
	return o.open()
}

// Run checks, applies, waits and prints.
func (o *SetOptions) Run(ctx context.Context) error {
	err := o.run(ctx, &o.request, o)
	if err != nil && o.written != nil && !o.changed {
		// The Secret is written, but the CredentialIssuer is not: half a change.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		if undone := o.written.undo(ctx, o.cluster, o.progress); undone != nil {
			return fmt.Errorf("%w; %w", err, undone)
		}
	}
	return err
}

// apply writes the Secret, if there are files for it, and then changes the CredentialIssuer. Once it has begun, an
// interrupt no longer stops it, so that both are changed or neither is.
func (o *SetOptions) apply(ctx context.Context, st *state, p *plan) (*configv1alpha1.CredentialIssuer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyTimeout)
	defer cancel()
	if err := o.applySecret(ctx, st, p); err != nil {
		return nil, err
	}
	if len(changesBetween(*st.issuer.Spec.ImpersonationProxy, p.wanted)) == 0 {
		o.changed = o.DryRun == dryRunNone
		return st.issuer, nil
	}
	applied, err := o.applyIssuer(ctx, st, p)
	o.changed = err == nil && o.DryRun == dryRunNone
	return applied, err
}

// applyTimeout bounds the writing, which is not interrupted.
const applyTimeout = 30 * time.Second

// applySecret writes the Secret when there are files for it and it differs from them.
func (o *SetOptions) applySecret(ctx context.Context, st *state, p *plan) error {
	if o.files == nil || len(writtenKeys(o.present, st.secret)) == 0 {
		p.putBack = o.undoWritten()
		return nil
	}
	dryRun := o.DryRun == dryRunServer
	after, err := writeSecret(ctx, o.cluster, o.present, st.secret, dryRun)
	if err != nil {
		return &secretError{name: st.secret.Namespace + "/" + st.secret.Name, error: err}
	}
	if dryRun {
		return nil
	}
	o.progress.Done("Wrote the certificate and its key into Secret %q", o.request.secret)
	if o.written == nil {
		o.written = &secretChange{before: o.present}
	}
	o.written.after, st.secret = after, after
	p.putBack = o.undoWritten()
	return nil
}

func (o *SetOptions) undoWritten() func(context.Context) error {
	if o.written == nil {
		return nil
	}
	return func(ctx context.Context) error { return o.written.undo(ctx, o.cluster, o.progress) }
}

// applyIssuer changes the CredentialIssuer by server-side apply.
func (o *SetOptions) applyIssuer(ctx context.Context, st *state, p *plan) (*configv1alpha1.CredentialIssuer, error) {
	applied, err := o.cluster.ApplyCredentialIssuer(ctx, st.issuer.Name, annotated(applyObject(st.issuer, p.wanted, o.request), p.annotations),
		discovery.ApplyOptions{FieldManager: fieldManager, Force: true, DryRun: o.DryRun == dryRunServer})
	if err != nil && unknownVerification(err) && !o.request.withoutVerification {
		o.progress.Info("CredentialIssuer %q has no field %q: this agent does not verify the certificate's names itself", st.issuer.Name, "verification")
		o.request.withoutVerification = true
		return nil, errLookAgain
	}
	return applied, err
}

func (o *SetOptions) command() string { return "set" }

// unknownVerification recognises the answer of an API server whose CredentialIssuers have no field verification.
func unknownVerification(err error) bool {
	return strings.Contains(err.Error(), "tls.verification: field not declared in schema")
}

// look gathers and decides.
func (o *SetOptions) look(ctx context.Context, first bool) (*state, *plan, error) {
	if name := o.request.secretName(); o.files != nil && name.Namespace != o.request.namespace {
		return nil, nil, ui.WithHint(ui.Usage(fmt.Errorf("--cert cannot be written into Secret %q of another namespace", name)),
			"let its owner write it, or name a Secret of namespace %q", o.request.namespace)
	}
	st, err := gather(ctx, o.cluster, o.CredentialIssuer, o.request.namespace, o.request.secret)
	if err != nil {
		return nil, nil, err
	}
	if err := o.request.fits(st.issuer); err != nil {
		return nil, nil, err
	}
	if o.files != nil {
		if err := mayWrite(st.secret, o.OverwriteSecret); err != nil {
			return nil, nil, err
		}
		o.present = st.secret
		st.secret = o.files.intended(o.present, o.request.namespace, o.request.secret, o.request.systemRoots)
	}
	if err := o.request.fitsSecret(st.secret); err != nil {
		return nil, nil, err
	}
	o.stamp(st)
	p := o.judged(ctx, o.request, st)
	if o.files != nil {
		before := o.present
		if o.written != nil {
			before = o.written.before // what this run has written before it looked again
		}
		p.changes = append(changesOfSecret(before, st.secret), p.changes...)
	}
	if first && !st.notPermitted() {
		name := o.request.secretName()
		if st.secret == nil || o.files != nil && o.present == nil {
			o.progress.Done("Read CredentialIssuer %q", st.issuer.Name)
		} else {
			o.progress.Done("Read Secret %q in namespace %q and CredentialIssuer %q", name.Name, name.Namespace, st.issuer.Name)
		}
	}
	o.say(st, p)
	return st, p, nil
}
