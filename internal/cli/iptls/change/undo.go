package change

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// UndoOptions is everything `pinniped ip-tls undo` needs; a test fills it directly.
type UndoOptions struct {
	Session *session.Session
	Flags   Flags

	Force bool
	Allow []string

	request plan.Request
}

// NewUndoCommand returns `pinniped ip-tls undo`.
func NewUndoCommand(f *factory.Factory) *cobra.Command {
	o := &UndoOptions{Session: session.New(f)}
	cmd := &cobra.Command{
		Use:   "undo",
		Short: "Go back to the last configuration that was in effect",
		Long: `Take back the last change that "ip-tls set", "unset" or "undo" itself made: an undo
of an undo does the change again. What never took effect, such as a name with a typo, is not gone back to: then it is
the configuration before that. "pinniped ip-tls history" shows the last changes.

Each change keeps the configuration before it in the annotation "` + plan.UndoAnnotation + `" of the CredentialIssuer: the tls block, the
external endpoint and the load balancer's address, never a key: what "ip-tls set --cert" has replaced in a Secret does
not come back, and a Secret that it has made stays, and is named. The fields that the change changed get their old values back, with the
same care as "ip-tls set" has: every check of the certificate, the kubeconfigs that are out there, waiting until the
endpoint presents the certificate, and going back when that does not happen in time. The other fields stay as they are.

When somebody else has changed the same fields since, the command says which, and refuses; --force takes that back as
well. While a new certificate waits for clients of the old one, it takes the change back at once. Later, the old
certificate waits in the same way for clients of the new one ("pinniped ip-tls set --help").

Exit codes: 0 done or unchanged, 1 failed (also: nothing to undo), 2 wrong usage, 3 refused (by a check, or as
somebody else has changed the configuration since), 4 not permitted by the cluster, 5 did not take effect in time, 6
waits for clients, 124 timed out before anything was changed, 130 interrupted.`,
		Example: `  # What would change?
  pinniped ip-tls undo --dry-run --diff

  pinniped ip-tls undo

  # The old certificate has another CA, and the kubeconfigs made in the meantime do not matter
  pinniped ip-tls undo --allow OldClientsBreak`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return factory.Execute(cmd.Context(), o)
		},
	}
	cmd.Flags().BoolVar(&o.Force, "force", false, "undo also what somebody else has changed in the same fields since")
	session.AddAllowFlag(cmd, &o.Allow, "OldClientsBreak")
	o.Flags.AddFlags(cmd, f, o.Session)
	return cmd
}

// Validate checks the flags before anything is read.
func (o *UndoOptions) Validate() error {
	if err := o.Flags.Validate(o.Session); err != nil {
		return err
	}
	var err error
	o.request.Allow, err = session.AllowedCodes(o.Allow)
	return err
}

// Complete loads the kubeconfig.
func (o *UndoOptions) Complete() error { return o.Session.Open() }

// Run looks, puts back, waits and prints.
func (o *UndoOptions) Run(ctx context.Context) error {
	return doAndPrint(ctx, &o.request, Change{Session: o.Session, Flags: o.Flags, Verb: o})
}

// Name is what records call the command.
func (o *UndoOptions) Name() string { return "undo" }

// Apply puts the fields back, no matter which manager owns them.
func (o *UndoOptions) Apply(ctx context.Context, p *Proposal) (*configv1alpha1.CredentialIssuer, error) {
	return Merge(ctx, o.Session.Cluster, p, o.Flags.DryRun)
}

// errChangedSince marks a refusal because of what somebody else did.
var errChangedSince = errors.New("somebody else has changed the configuration since")

// Evaluate reads the record of the last change, and evaluates the configuration that it leads back to.
func (o *UndoOptions) Evaluate(ctx context.Context, first bool) (*Proposal, error) {
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return nil, err
	}
	record, err := plan.ReadUndoRecord(issuer)
	if err != nil {
		return nil, ui.WithHint(err, "it was written by another version of pinniped, or changed by hand; nothing "+
			"was changed")
	}
	if record == nil {
		return nil, ui.WithHint(fmt.Errorf("there is nothing to undo: CredentialIssuer %q has no record of a "+
			"change by pinniped ip-tls", issuer.Name),
			`change the certificate with "pinniped ip-tls set" or "unset"`)
	}
	back, changedSince := record.Undone(plan.TargetOf(issuer.Spec.ImpersonationProxy))
	st, err := o.Session.GatherTarget(ctx, issuer, o.request.Namespace, back)
	if err != nil {
		return nil, err
	}
	wanted, evaluate := back.In(issuer.Spec.ImpersonationProxy), plan.EvaluateTarget
	switch {
	case len(plan.ChangesBetween(*issuer.Spec.ImpersonationProxy, wanted)) == 0:
	case plan.ServesGenerated(wanted.TLS):
		evaluate = plan.EvaluateGenerated
	default:
		wanted.TLS = st.DualTrust(wanted.TLS)
	}
	p := &Proposal{Snapshot: st, Plan: evaluate(o.request, st, wanted), Outcome: result.OutcomeUndone}
	if first {
		o.Session.Progress.Done("The last change of CredentialIssuer %q by pinniped was \"ip-tls %s\" at %s",
			issuer.Name, record.Command, record.At.Format(time.RFC3339))
	}
	if err := o.changedSince(issuer, record, changedSince); err != nil {
		return p, err
	}
	if record.SecretReplaced != "" {
		o.Session.Progress.Warn("\"ip-tls %s\" has also replaced what was in Secret %q: that was not kept, and "+
			"stays as it is", record.Command, record.SecretReplaced)
	}
	if len(record.SecretsMade) > 0 && first {
		o.Session.Progress.Info("\"ip-tls set --cert\" has made %s: that stays; when it is not needed any more, remove it "+
			"with \"kubectl delete secret --namespace %s %s\"", named("Secret", record.SecretsMade), o.request.Namespace,
			strings.Join(record.SecretsMade, " "))
	}
	if len(p.Plan.Changes) == 0 {
		o.Session.Progress.Info("The configuration is the last one that was in effect already")
	}
	Say(o.Session.Progress, st, p.Plan)
	return p, nil
}

// named lists names after what they name.
func named(what string, names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = fmt.Sprintf("%q", name)
	}
	if len(names) > 1 {
		what += "s"
	}
	return what + " " + strings.Join(quoted, ", ")
}

func (o *UndoOptions) changedSince(issuer *configv1alpha1.CredentialIssuer, record *plan.UndoRecord,
	fields []string,
) error {
	if len(fields) == 0 {
		return nil
	}
	what := strings.Join(fields, ", ")
	if managers := plan.ManagersOf(issuer, fields); len(managers) > 0 {
		what += fmt.Sprintf(" (managed by %s)", strings.Join(managers, ", "))
	}
	if o.Force {
		o.Session.Progress.Warn("somebody else has changed %s since \"ip-tls %s\": that is taken back as well", what,
			record.Command)
		return nil
	}
	err := fmt.Errorf("%w \"ip-tls %s\" at %s: %s", errChangedSince, record.Command, record.At.Format(time.RFC3339),
		what)
	return ui.WithExitCode(ui.WithHint(err, `%slook at the difference with "pinniped ip-tls undo --force --dry-run `+
		`--diff"; --force takes it back`, plan.NothingChanged), ui.ExitRefused)
}
