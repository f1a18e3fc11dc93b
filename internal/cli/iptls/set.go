package iptls

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// SetOptions is everything `pinniped ip-tls set` needs; a test fills it directly.
type SetOptions struct {
	Changing
	Candidate

	request request
}

func newSetCommand(f *factory.Factory) *cobra.Command {
	o := &SetOptions{Changing: Changing{Connection: connection(f)}}
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
			return execute(cmd.Context(), o)
		},
	}
	o.Candidate.addFlags(cmd, "name of the Secret with the certificate, in the agent's namespace (required)",
		`CA bundle to advertise to clients: a PEM file, or "-" for stdin (default: what the CredentialIssuer has, else ca.crt of the Secret, else none)`)
	o.Changing.addFlags(cmd, f)
	return cmd
}

// Validate checks the flags before anything is read.
func (o *SetOptions) Validate() error {
	if o.Secret == "" {
		return ui.WithHint(ui.Usage(errors.New("--secret is missing")), "name the Secret with the certificate: --secret proxy-tls")
	}
	if err := o.Changing.validate(); err != nil {
		return err
	}
	return o.Candidate.validate()
}

// Complete turns the flags into a request: it reads the CA bundle and loads the kubeconfig.
func (o *SetOptions) Complete() error {
	var err error
	if o.request, err = o.asRequest(o.In); err != nil {
		return err
	}
	return o.open()
}

// Run checks, applies, waits and prints.
func (o *SetOptions) Run(ctx context.Context) error {
	return o.run(ctx, &o.request, o)
}

// apply changes the CredentialIssuer by server-side apply.
func (o *SetOptions) apply(ctx context.Context, st *state, p *plan) (*configv1alpha1.CredentialIssuer, error) {
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
	st, err := gather(ctx, o.cluster, o.CredentialIssuer, o.request.namespace, o.request.secret)
	if err != nil {
		return nil, nil, err
	}
	if err := o.request.fits(st.issuer); err != nil {
		return nil, nil, err
	}
	o.stamp(st)
	p := o.judged(ctx, o.request, st)
	if first {
		o.progress.Done("Read Secret %q in namespace %q and CredentialIssuer %q", o.request.secret, o.request.namespace, st.issuer.Name)
	}
	o.say(st, p)
	return st, p, nil
}
