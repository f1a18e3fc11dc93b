package change

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// UnsetOptions holds the inputs of `pinniped ip-tls unset`; a test fills it directly.
type UnsetOptions struct {
	Session *session.Session
	Flags   Flags

	Allow []string

	request plan.Request
}

// NewUnsetCommand returns `pinniped ip-tls unset`.
func NewUnsetCommand(f *factory.Factory) *cobra.Command {
	o := &UnsetOptions{Session: session.New(f)}
	cmd := &cobra.Command{
		Use:   "unset",
		Short: "Go back to the certificate that the agent generates",
		Long: `Go back to the generated certificate by removing spec.impersonationProxy.tls from the CredentialIssuer, no matter
who set it. The Secret, the external endpoint and the rest of the configuration do not change.

The agent publishes its own CA in place of the current trust bundle. If clients in use do not trust this CA, the agent
serves the old certificate and publishes both trust bundles. The command then exits with 6, as "ip-tls set" does; run
it again to see the progress. --allow OldClientsBreak switches at once. Kubeconfigs that were made before "ip-tls set"
work again, because the agent keeps its CA.

The command waits until the agent reports its own CA, and every address of the endpoint presents a certificate that
this CA verifies. If that takes too long, the command restores the previous configuration.

Exit codes: 0 unset or unchanged, 3 refused, 5 not in effect in time, 6 in transition (see "pinniped help exit-codes")`,
		Example: `  # Who would need a new kubeconfig?
  pinniped ip-tls unset --dry-run --diff

  pinniped ip-tls unset

  # Switch at once: all users get a new kubeconfig afterwards
  pinniped ip-tls unset --allow OldClientsBreak

  # In a script
  pinniped ip-tls unset --timeout 5m -o json`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return factory.Execute(cmd.Context(), o)
		},
	}
	session.AddAllowFlag(cmd, &o.Allow, "OldClientsBreak")
	o.Flags.AddFlags(cmd, f, o.Session)
	return cmd
}

// Validate checks the flags.
func (o *UnsetOptions) Validate() error {
	if err := o.Flags.Validate(o.Session); err != nil {
		return err
	}
	var err error
	o.request.Allow, err = session.AllowedCodes(o.Allow)
	return err
}

// Complete loads the kubeconfig.
func (o *UnsetOptions) Complete() error { return o.Session.Open() }

// Run removes the configuration, waits and prints.
func (o *UnsetOptions) Run(ctx context.Context) error {
	return doAndPrint(ctx, &o.request, Change{Session: o.Session, Flags: o.Flags, Verb: o})
}

// Evaluate evaluates the generated certificate.
func (o *UnsetOptions) Evaluate(ctx context.Context, _ bool) (*Proposal, error) {
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return nil, err
	}
	wanted := *issuer.Spec.ImpersonationProxy.DeepCopy()
	wanted.TLS = nil
	st, err := o.Session.Gather(ctx, issuer, o.request.Namespace, wanted)
	if err != nil {
		return nil, err
	}
	p := plan.EvaluateGenerated(o.request, st, wanted)
	Say(o.Session.Progress, st, p)
	return &Proposal{Snapshot: st, Plan: p}, nil
}

// Apply removes the tls block, regardless of field managers.
func (o *UnsetOptions) Apply(ctx context.Context, p *Proposal) (*configv1alpha1.CredentialIssuer, error) {
	return (&Change{Session: o.Session, Flags: o.Flags}).merge(ctx, p)
}
