package change

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// UndoOptions holds the inputs of `pinniped ip-tls undo`; a test fills it directly.
type UndoOptions struct {
	Session *session.Session
	Flags   Flags

	ToRevision string // ID or a prefix of it; empty: the previous one
	Allow      []string

	request plan.Request
}

// NewUndoCommand returns `pinniped ip-tls undo`.
func NewUndoCommand(f *factory.Factory) *cobra.Command {
	o := &UndoOptions{Session: session.New(f)}
	cmd := &cobra.Command{
		Use:   "undo",
		Short: "Go back to the last configuration that was in effect",
		Long: `Restore the configuration of the last revision that was in effect before the current one, no matter who has
changed the configuration since. A second undo therefore reverts the first. --to-revision restores another revision
("pinniped ip-tls history" lists all).

A revision contains the configuration that led to it: the tls block, the external endpoint, the type of the Service and
the address of the load balancer. The command makes the same checks as "ip-tls set", waits until the endpoint presents
the certificate, and reverts the change if that takes too long. If clients in use would break, the agent keeps the
current certificate in service until no client would ("pinniped ip-tls set --help"). The command does not change
Secrets, so content that "ip-tls set --cert" has replaced does not come back.

Exit codes: 0 undone or unchanged, 3 refused, 5 not in effect in time, 6 in transition (see "pinniped help exit-codes")`,
		Example: `  # What would change?
  pinniped ip-tls undo --dry-run --diff

  pinniped ip-tls undo
  pinniped ip-tls undo --to-revision 5c0f9a3e71`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return factory.Execute(cmd.Context(), o) },
	}
	cmd.Flags().StringVar(&o.ToRevision, "to-revision", "",
		"ID, or ID prefix, of the revision to restore (default: the last one that was in effect before the current one)")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{"to-revision": cobra.NoFileCompletions})
	session.AddAllowFlag(cmd, &o.Allow, "OldClientsBreak")
	o.Flags.AddFlags(cmd, f, o.Session)
	return cmd
}

// Validate checks the flags.
func (o *UndoOptions) Validate() (err error) {
	o.request.Allow, err = session.AllowedCodes(o.Allow)
	return cmp.Or(o.Flags.Validate(o.Session), err)
}

// Complete loads the kubeconfig.
func (o *UndoOptions) Complete() error { return o.Session.Open() }

// Run restores a revision, waits and prints.
func (o *UndoOptions) Run(ctx context.Context) error {
	return (&Change{Session: o.Session, Flags: o.Flags, Evaluate: o.evaluate}).run(ctx, &o.request)
}

// evaluate finds the revision to restore, and evaluates its configuration.
func (o *UndoOptions) evaluate(ctx context.Context, first bool) (*Proposal, error) {
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return nil, err
	}
	to, err := o.target(ctx, issuer)
	if err != nil {
		return nil, err
	}
	wanted := plan.BackTo(to, issuer.Spec.ImpersonationProxy)
	st, err := o.Session.Gather(ctx, issuer, o.request.Namespace, wanted)
	if err != nil {
		return nil, err
	}
	evaluate := plan.Evaluate
	switch {
	case len(plan.ChangesBetween(*issuer.Spec.ImpersonationProxy, wanted)) == 0:
	case plan.ServesGenerated(wanted.TLS):
		evaluate = plan.EvaluateGenerated
	default:
		wanted.TLS = st.DualTrust(wanted.TLS)
	}
	p := &Proposal{Snapshot: st, Plan: evaluate(o.request, st, wanted), Outcome: result.OutcomeUndone}
	if first {
		o.Session.Progress.Done("Read revision %s, published %s: %s", to.ID, to.When(), plan.Describe(&wanted))
	}
	Say(o.Session.Progress, st, p.Plan)
	return p, nil
}

// target returns the revision to restore. Its Spec is not nil.
func (o *UndoOptions) target(ctx context.Context, issuer *configv1alpha1.CredentialIssuer) (*serving.Revision, error) {
	h, found, err := o.Session.History(ctx, issuer, o.request.Namespace)
	if err != nil {
		return nil, err
	}
	byHand := func(format string, args ...any) error {
		return ui.WithHint(fmt.Errorf(format, args...), "restore the configuration manually: kubectl edit %s",
			discovery.KubectlName(issuer))
	}
	to := plan.Previous(h, issuer.Spec.ImpersonationProxy)
	switch {
	case !found:
		return nil, byHand("there is no revision history: the agent of CredentialIssuer %q keeps none", issuer.Name)
	case o.ToRevision != "":
		if to = h.Find(o.ToRevision); to == nil {
			return nil, ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --to-revision: that matches no revision, "+
				"or several", o.ToRevision)), "list the revisions: pinniped ip-tls history")
		}
	case to == nil:
		for i := range h.Revisions {
			if r := &h.Revisions[i]; !r.Until.IsZero() && r.Spec == nil {
				to = r // it may have been in effect
			}
		}
	}
	switch {
	case to == nil:
		return nil, ui.WithHint(fmt.Errorf("there is nothing to undo: no other configuration of CredentialIssuer %q was in "+
			"effect before", issuer.Name), `change the certificate with "pinniped ip-tls set" or "unset"`)
	case to.Spec == nil:
		return nil, byHand("revision %s has no configuration, because an older agent published it, or the history was lost "+
			"and restored", to.ID)
	}
	return to, nil
}

// UnsetOptions holds the inputs of `pinniped ip-tls unset`: those of undo, without a revision.
type UnsetOptions UndoOptions

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

The command waits until the agent reports its own CA, and until every address of the endpoint presents a certificate
that this CA verifies. If that takes too long, the command restores the previous configuration.

Exit codes: 0 unset or unchanged, 3 refused, 5 not in effect in time, 6 in transition (see "pinniped help exit-codes")`,
		Example: `  # Who would need a new kubeconfig?
  pinniped ip-tls unset --dry-run --diff

  pinniped ip-tls unset

  # Switch at once; afterwards, give all users a new kubeconfig
  pinniped ip-tls unset --allow OldClientsBreak

  # In a script
  pinniped ip-tls unset --timeout 5m -o json`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return factory.Execute(cmd.Context(), o) },
	}
	session.AddAllowFlag(cmd, &o.Allow, "OldClientsBreak")
	o.Flags.AddFlags(cmd, f, o.Session)
	return cmd
}

// Validate checks the flags.
func (o *UnsetOptions) Validate() error { return (*UndoOptions)(o).Validate() }

// Complete loads the kubeconfig.
func (o *UnsetOptions) Complete() error { return o.Session.Open() }

// Run removes the configuration, waits and prints.
func (o *UnsetOptions) Run(ctx context.Context) error {
	return (&Change{Session: o.Session, Flags: o.Flags, Evaluate: o.evaluate}).run(ctx, &o.request)
}

// evaluate evaluates the generated certificate.
func (o *UnsetOptions) evaluate(ctx context.Context, _ bool) (*Proposal, error) {
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
	return &Proposal{Snapshot: st, Plan: p, Outcome: result.OutcomeUnset}, nil
}
