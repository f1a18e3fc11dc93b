package delegate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	checkDelegation = "delegation"
	checkRBAC       = "rbac"
	checkSecret     = "secret" // information only
)

type explanation struct{ result.DelegationExplanation }

// ExplainOptions holds the inputs of `pinniped explain`; a test fills it directly.
type ExplainOptions struct {
	Session *session.Session
	Grant   Grant
	Style   ui.Style
}

// NewExplainCommand returns `pinniped explain`.
func NewExplainCommand(f *factory.Factory) *cobra.Command {
	o := &ExplainOptions{Session: session.New(f)}
	cmd := &cobra.Command{
		Use: "explain NAMESPACE/NAME", Short: "Explain access to a Secret in another namespace",
		Long: `Explain whether the agent may serve the certificate in a Secret in another namespace and, if not, why.
The command checks:

  - whether a TLSCertificateDelegation in that namespace names the Secret and the agent's namespace, and
    which ones almost match
  - whether RBAC lets the agent's service account read that Secret

If an object cannot be read, the result of its check is unknown. If you may read the Secret, the output also says
whether it exists; the agent does not read the Secret without permission. If something is missing, the command prints
the YAML that the owner of the namespace can apply.

Exit codes: 0 permitted, 3 not permitted, 4 not known (see "pinniped help exit-codes")`,
		Example: `  pinniped explain shared/wildcard-tls
  pinniped explain shared/wildcard-tls --to pinniped-concierge -o json

  # Only the owner's YAML
  pinniped ip-tls delegate shared/wildcard-tls --dry-run -o yaml`,
		Args: oneSecret, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Grant.Secret, o.Style = args[0], f.Style(f.Out)
			return factory.Execute(cmd.Context(), o)
		},
	}
	o.Grant.addFlags(cmd)
	o.Session.AddFlags(cmd, f, 30*time.Second, factory.Formats()...)
	return cmd
}

// Validate checks the argument and the flags.
func (o *ExplainOptions) Validate() error {
	return cmp.Or(o.Session.Validate(factory.Formats()...), o.Grant.validate())
}

// Complete loads the kubeconfig.
func (o *ExplainOptions) Complete() error { return o.Session.Open() }

// Run collects, decides and prints.
func (o *ExplainOptions) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Session.Timeout)
	defer cancel()
	grant, err := o.Grant.grant(ctx, o.Session)
	if err != nil {
		return session.WithCodes(err)
	}
	found, err := o.explain(ctx, grant)
	if err != nil {
		return session.WithCodes(err)
	}
	text := func() ([]byte, error) { return o.table(found), nil }
	return o.Session.Print(&found.DelegationExplanation, o.verdict(found), text)
}

func (o *ExplainOptions) verdict(found *explanation) error {
	switch found.Permitted {
	case result.AnswerYes:
		return nil
	case result.AnswerNo:
		var missing []string
		for _, check := range found.Checks {
			if check.Name != checkSecret && check.Answer == result.AnswerNo {
				missing = append(missing, check.Message)
			}
		}
		hint := fmt.Sprintf("ask the owner of namespace %q for the objects above, or to run: pinniped ip-tls delegate "+
			"%s --to %s", o.Grant.secret.Namespace, o.Grant.secret, found.Agent.Namespace)
		if found.Reason == delegation.NoDelegations {
			hint = kindHint
		}
		err := fmt.Errorf("%s: Secret %q cannot be used from namespace %q: %s", certs.SecretNotPermitted,
			o.Grant.secret, found.Agent.Namespace, strings.Join(missing, "; "))
		return ui.WithExitCode(ui.WithHint(err, "%s", hint), ui.ExitRefused)
	default:
		return ui.WithExitCode(ui.WithHint(errors.New("cannot tell whether the agent may use the Secret"),
			"ask the owner of namespace %q to run the same command", o.Grant.secret.Namespace), ui.ExitNotPermitted)
	}
}

// explain collects all that the caller may read.
func (o *ExplainOptions) explain(ctx context.Context, grant delegation.Grant) (*explanation, error) {
	e := &explanation{}
	e.Secret = result.ObjectRef(grant.Secret)
	e.Agent = result.ObjectRef{Namespace: grant.Namespace, Name: grant.ServiceAccount}
	e.Permitted, e.Reason = result.AnswerYes, delegation.Permitted
	if grant.Namespace == o.Grant.secret.Namespace {
		e.add(checkDelegation, "", result.AnswerYes, "none is needed: the Secret is in the agent's own namespace")
		return e, o.addSecret(ctx, e)
	}
	if err := o.addDelegation(ctx, e); err != nil {
		return nil, err
	}
	if err := o.addRBAC(ctx, e); err != nil {
		return nil, err
	}
	if e.Permitted != result.AnswerYes {
		manifest, err := delegation.YAML(grant.Objects())
		if err != nil {
			return nil, err
		}
		e.Manifest = string(manifest)
	}
	return e, o.addSecret(ctx, e)
}

// add adds a check. The reason of the first "no" is kept, and a "no" replaces an "unknown".
func (e *explanation) add(name string, reason delegation.Outcome, answer result.Answer, format string, args ...any) {
	e.Checks = append(e.Checks, result.DelegationCheck{Name: name, Answer: answer, Message: fmt.Sprintf(format, args...)})
	if name != checkSecret && (answer == result.AnswerNo && e.Permitted != result.AnswerNo ||
		answer == result.AnswerUnknown && e.Permitted == result.AnswerYes) {
		e.Permitted, e.Reason = answer, reason
	}
}

// addDelegation reads the delegations of all namespaces, for near misses, or else of the Secret's namespace.
func (o *ExplainOptions) addDelegation(ctx context.Context, e *explanation) error {
	all, err := o.Session.Cluster.Delegations(ctx, "")
	if errors.Is(err, discovery.ErrForbidden) {
		all, err = o.Session.Cluster.Delegations(ctx, o.Grant.secret.Namespace)
	}
	switch decision := delegation.Decide(o.Grant.secret, e.Agent.Namespace, all); {
	case errors.Is(err, discovery.ErrNotFound):
		e.add(checkDelegation, delegation.NoDelegations, result.AnswerNo, "the cluster has no %ss (%s/%s)",
			delegation.Kind, delegation.Group, delegation.Version)
	case errors.Is(err, discovery.ErrForbidden):
		e.add(checkDelegation, "", result.AnswerUnknown, "you may not list %ss in namespace %q", delegation.Kind,
			o.Grant.secret.Namespace)
	case err != nil:
		return err
	case decision.Permitted:
		e.add(checkDelegation, "", result.AnswerYes, "%s %q names the Secret for namespace %q", delegation.Kind,
			decision.By, e.Agent.Namespace)
	default:
		e.NearMisses = decision.NearMisses
		e.add(checkDelegation, delegation.NotDelegated, result.AnswerNo, "no %s in namespace %q names the Secret for "+
			"namespace %q", delegation.Kind, o.Grant.secret.Namespace, e.Agent.Namespace)
	}
	return nil
}

func (o *ExplainOptions) addRBAC(ctx context.Context, e *explanation) error {
	agent := types.NamespacedName(e.Agent)
	allowed, err := o.Session.Cluster.MayReadSecret(ctx, agent, o.Grant.secret)
	switch {
	case errors.Is(err, discovery.ErrForbidden):
		e.add(checkRBAC, "", result.AnswerUnknown, "you may not create a SubjectAccessReview for service account %q", agent)
	case err != nil:
		return err
	case allowed:
		e.add(checkRBAC, "", result.AnswerYes, "service account %q may list and watch the Secret of this name", agent)
	default:
		e.add(checkRBAC, delegation.NotReadable, result.AnswerNo,
			"service account %q may not list and watch the Secret of this name", agent)
	}
	return nil
}

// addSecret adds what the caller may read of the Secret. It decides nothing.
func (o *ExplainOptions) addSecret(ctx context.Context, e *explanation) error {
	secret, err := o.Session.Cluster.Secret(ctx, o.Grant.secret.Namespace, o.Grant.secret.Name)
	switch {
	case errors.Is(err, discovery.ErrForbidden):
		e.add(checkSecret, "", result.AnswerUnknown, "you may not read it, so nothing more is known")
	case errors.Is(err, discovery.ErrNotFound):
		e.add(checkSecret, "", result.AnswerNo, "it does not exist")
	case err != nil:
		return err
	case len(secret.Data[corev1.TLSCertKey]) == 0 || len(secret.Data[corev1.TLSPrivateKeyKey]) == 0:
		e.add(checkSecret, "", result.AnswerNo, "it exists, of type %s, but has no tls.crt or no tls.key", secret.Type)
	default:
		e.add(checkSecret, "", result.AnswerYes, "it exists, of type %s; see also: pinniped ip-tls check --secret %s",
			secret.Type, o.Grant.secret)
	}
	return nil
}

func (o *ExplainOptions) table(e *explanation) []byte {
	var out strings.Builder
	var rows [][]string
	colours := map[result.Answer]func(string) string{
		result.AnswerYes: o.Style.Good, result.AnswerNo: o.Style.Bad, result.AnswerUnknown: o.Style.Caution,
	}
	for _, check := range e.Checks {
		rows = append(rows, []string{check.Name, colours[check.Answer](string(check.Answer)), check.Message})
	}
	_ = ui.Table(&out, []string{"check", "answer", "message"}, rows) // a Builder cannot fail
	if len(e.NearMisses) > 0 {
		out.WriteString("\nNear misses:\n")
		for _, miss := range e.NearMisses {
			ui.Fprintf(&out, "  %s: %s\n", miss.Delegation, miss.Message)
		}
	}
	if e.Manifest != "" {
		fmt.Fprintf(&out, "\nThe owner of namespace %q can permit it with:\n\n%s", o.Grant.secret.Namespace, e.Manifest)
	}
	return []byte(out.String())
}
