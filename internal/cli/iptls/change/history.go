package change

import (
	"cmp"
	"context"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
)

// HistoryOptions is everything `pinniped ip-tls history` needs; a test fills it directly.
type HistoryOptions struct {
	Session *session.Session
}

// NewHistoryCommand returns `pinniped ip-tls history`.
func NewHistoryCommand(f *factory.Factory) *cobra.Command {
	o := &HistoryOptions{Session: session.New(f)}
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show the last changes by ip-tls: who, when, and whether they took effect",
		Long: `Show the last ten changes that "ip-tls set", "unset" and "undo" made, the newest first: when, by
whom, what they left, and what came of it.

  inEffect      the endpoint presented the certificate
  notInEffect   it did not, and --no-rollback left the configuration in place
  putBack       it did not, and the previous configuration was put back
  unknown       the command did not wait for it, was interrupted, or still waits

They are kept in the annotation "` + plan.HistoryAnnotation + `" of the CredentialIssuer, which everybody who may change the
CredentialIssuer may change as well: the API server's audit log is what cannot be forged. Changes by other programs are
not in it.

Exit codes: 0 done, 1 failed, 2 wrong usage, 4 not permitted by the cluster, 124 timed out, 130 interrupted.`,
		Example: `  pinniped ip-tls history

  # Who made the last change?
  pinniped ip-tls history -o json | jq -r '.changes[0].by'`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return factory.Execute(cmd.Context(), o)
		},
	}
	o.Session.AddFlags(cmd, f, 30*time.Second, factory.Formats()...)
	return cmd
}

// Validate checks the flags before anything is read.
func (o *HistoryOptions) Validate() error { return o.Session.Validate(factory.Formats()...) }

// Complete loads the kubeconfig.
func (o *HistoryOptions) Complete() error { return o.Session.Open() }

// Run reads and prints.
func (o *HistoryOptions) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Session.Timeout)
	defer cancel()
	done := &result.History{Changes: []result.NotedChange{}}
	err := o.read(ctx, done)
	if err != nil && done.CredentialIssuer == "" {
		return err
	}
	return o.Session.Print(done, err, func() ([]byte, error) { return historyText(done) })
}

func (o *HistoryOptions) read(ctx context.Context, done *result.History) error {
	namespace, err := session.FindNamespace(ctx, o.Session.Cluster, o.Session.Namespace, o.Session.CredentialIssuer)
	if err != nil {
		return err
	}
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return err
	}
	done.CredentialIssuer = issuer.Name
	history, err := plan.ReadHistory(issuer)
	if err != nil {
		return ui.WithHint(err, "it was written by another version of pinniped, or changed by hand")
	}
	newest := history.Newest()
	if newest != nil && newest.Outcome == result.ChangeUnknown && plan.InEffect(issuer) &&
		reflect.DeepEqual(newest.Left, plan.TargetOf(issuer.Spec.ImpersonationProxy).Digested()) {
		newest.Outcome = result.ChangeInEffect // as the status tells
	}
	for _, change := range history.Changes {
		done.Changes = append(done.Changes, printed(change, namespace))
	}
	return nil
}

// printed returns a change as it is printed. namespace is the agent's.
func printed(change plan.Change, namespace string) result.NotedChange {
	one := result.NotedChange{
		At: change.At, Command: change.Command, By: change.By, ExternalEndpoint: change.Left.ExternalEndpoint,
		Mode: change.Left.Mode, Outcome: change.Outcome,
	}
	if !plan.ServesGenerated(change.Left.TLS) {
		if name, err := delegation.SecretName(change.Left.TLS.SecretName, namespace); err == nil {
			ref := result.Ref(name)
			one.Secret = &ref
		}
	}
	return one
}

func historyText(done *result.History) ([]byte, error) {
	if len(done.Changes) == 0 {
		return []byte("credentialissuer/" + done.CredentialIssuer + ": no change by pinniped ip-tls\n"), nil
	}
	var out strings.Builder
	rows := make([][]string, 0, len(done.Changes))
	for _, one := range done.Changes {
		rows = append(rows, []string{
			one.At.Format(time.RFC3339), cmp.Or(one.By, "(not known)"), one.Command, secretText(one.Secret),
			plan.OrNone(one.ExternalEndpoint), string(one.Outcome),
		})
	}
	if err := ui.PlainTable(&out, []string{"at", "by", "command", "secret", "endpoint", "outcome"}, rows); err != nil {
		return nil, err
	}
	return []byte(out.String()), nil
}

func secretText(secret *result.ObjectRef) string {
	if secret == nil {
		return "(generated)"
	}
	return secret.Namespace + "/" + secret.Name
}
