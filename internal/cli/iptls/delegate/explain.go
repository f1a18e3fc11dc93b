package delegate

import (
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

// The checks.
const (
	checkDelegation = "delegation"
	checkRBAC       = "rbac"
	checkSecret     = "secret" // information only
)

// explanation collects the result.
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
		Use:   "explain NAMESPACE/NAME",
		Short: "Explain access to a Secret in another namespace",
		Long: `Explain whether the agent may serve the certificate in a Secret in another namespace and, if not, why.
The command checks:

  - whether a TLSCertificateDelegation in that namespace names the Secret and the agent's namespace, and
    which ones almost match
  - whether RBAC lets the agent's service account read that Secret

If an object cannot be read, its result is unknown. The output says whether the Secret exists only if you may read it;
the agent does not read the Secret without permission. If something is missing, the command prints the YAML that the
owner of the namespace can apply.

Exit codes: 0 permitted, 3 not permitted, 4 not known (see "pinniped help exit-codes")`,
		Example: `  pinniped explain shared/wildcard-tls
  pinniped explain shared/wildcard-tls --to pinniped-concierge -o json

  # Only the owner's YAML
  pinniped ip-tls delegate shared/wildcard-tls --dry-run -o yaml`,
		Args:              oneSecret,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Grant.Secret, o.Style = args[0], f.Style(f.Out)
			return factory.Execute(cmd.Context(), o)
		},
	}
	o.Grant.addFlags(cmd)
	o.Session.AddFlags(cmd, f, 30*time.Second, explainFormats()...)
	return cmd
}

func explainFormats() []string { return factory.Formats() }

// Validate checks the argument and the flags.
func (o *ExplainOptions) Validate() error {
	if err := o.Session.Validate(explainFormats()...); err != nil {
		return err
	}
	return o.Grant.validate()
}

// Complete loads the kubeconfig.
func (o *ExplainOptions) Complete() error { return o.Session.Open() }

// Run collects, decides and prints.
func (o *ExplainOptions) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Session.Timeout)
	defer cancel()
	agent, err := o.Grant.agent(ctx, o.Session)
	if err != nil {
		return session.WithCodes(err)
	}
	found, err := o.explain(ctx, agent)
	if err != nil {
		return session.WithCodes(err)
	}
	return o.Session.Print(&found.DelegationExplanation, o.verdict(found, agent), func() ([]byte, error) {
		return o.table(found)
	})
}

// verdict returns an error unless the use is permitted.
func (o *ExplainOptions) verdict(found *explanation, agent types.NamespacedName) error {
	switch found.Permitted {
	case result.AnswerYes:
		return nil
	case result.AnswerNo:
		err := fmt.Errorf("%s: Secret %q cannot be used from namespace %q: %s", certs.SecretNotPermitted,
			o.Grant.secret, agent.Namespace, found.missing())
		return ui.WithExitCode(ui.WithHint(err, "%s", o.hint(found)), ui.ExitRefused)
	default:
		return ui.WithExitCode(ui.WithHint(errors.New("cannot tell whether the agent may use the Secret"),
			"ask the owner of namespace %q to run the same command", o.Grant.secret.Namespace), ui.ExitNotPermitted)
	}
}

// missing lists in one line what the permission lacks.
func (e *explanation) missing() string {
	var all []string
	for _, check := range e.Checks {
		if check.Name != checkSecret && check.Answer == result.AnswerNo {
			all = append(all, check.Message)
		}
	}
	return strings.Join(all, "; ")
}

func (o *ExplainOptions) hint(found *explanation) string {
	if found.Reason == delegation.NoDelegations {
		return kindHint
	}
	return fmt.Sprintf("ask the owner of namespace %q for the objects above, or to run: pinniped ip-tls delegate "+
		"%s --to %s", o.Grant.secret.Namespace, o.Grant.secret, found.Agent.Namespace)
}

// explain collects all that the caller may read.
func (o *ExplainOptions) explain(ctx context.Context, agent types.NamespacedName) (*explanation, error) {
	e := &explanation{
		result.DelegationExplanation{
			Secret: result.Ref(
				o.Grant.secret,
			),
			Agent:     result.Ref(agent),
			Permitted: result.AnswerYes,
			Reason:    delegation.Permitted,
		},
	}
	if agent.Namespace == o.Grant.secret.Namespace {
		e.add(checkDelegation, result.AnswerYes, "none is needed: the Secret is in the agent's own namespace")
		return e, o.addSecret(ctx, e)
	}
	if err := o.addDelegation(ctx, e); err != nil {
		return nil, err
	}
	if err := o.addRBAC(ctx, e, agent); err != nil {
		return nil, err
	}
	if e.Permitted != result.AnswerYes {
		objects := delegation.Grant{
			Secret: o.Grant.secret, Namespace: agent.Namespace,
			ServiceAccount: agent.Name,
		}.Objects()
		manifest, err := delegation.YAML(objects)
		if err != nil {
			return nil, err
		}
		e.Manifest = string(manifest)
	}
	return e, o.addSecret(ctx, e)
}

func (e *explanation) add(name string, answer result.Answer, format string, args ...any) {
	e.Checks = append(e.Checks, result.DelegationCheck{Name: name, Answer: answer, Message: fmt.Sprintf(format, args...)})
}

// deny records that something is missing. The first reason is kept, and a "no" replaces an "unknown".
func (e *explanation) deny(outcome delegation.Outcome) {
	if e.Permitted != result.AnswerNo {
		e.Permitted, e.Reason = result.AnswerNo, outcome
	}
}

func (e *explanation) doubt() {
	if e.Permitted == result.AnswerYes {
		e.Permitted, e.Reason = result.AnswerUnknown, ""
	}
}

// addDelegation reads the delegations of all namespaces, for near misses, or else of the Secret's namespace.
func (o *ExplainOptions) addDelegation(ctx context.Context, e *explanation) error {
	all, err := o.Session.Cluster.Delegations(ctx, "")
	if errors.Is(err, discovery.ErrForbidden) {
		all, err = o.Session.Cluster.Delegations(ctx, o.Grant.secret.Namespace)
	}
	switch {
	case errors.Is(err, discovery.ErrNotFound):
		e.add(checkDelegation, result.AnswerNo, "the cluster has no %ss (%s/%s)", delegation.Kind, delegation.Group,
			delegation.Version)
		e.deny(delegation.NoDelegations)
		return nil
	case errors.Is(err, discovery.ErrForbidden):
		e.add(checkDelegation, result.AnswerUnknown, "you may not list %ss in namespace %q", delegation.Kind,
			o.Grant.secret.Namespace)
		e.doubt()
		return nil
	case err != nil:
		return err
	}
	decision := delegation.Decide(o.Grant.secret, e.Agent.Namespace, all)
	if decision.Permitted {
		e.add(checkDelegation, result.AnswerYes, "%s %q names the Secret for namespace %q", delegation.Kind, decision.By,
			e.Agent.Namespace)
		return nil
	}
	e.NearMisses = decision.NearMisses
	e.add(checkDelegation, result.AnswerNo, "no %s in namespace %q names the Secret for namespace %q", delegation.Kind,
		o.Grant.secret.Namespace, e.Agent.Namespace)
	e.deny(delegation.NotDelegated)
	return nil
}

func (o *ExplainOptions) addRBAC(ctx context.Context, e *explanation, agent types.NamespacedName) error {
	allowed, err := o.Session.Cluster.MayReadSecret(ctx, agent, o.Grant.secret)
	switch {
	case errors.Is(err, discovery.ErrForbidden):
		e.add(checkRBAC, result.AnswerUnknown, "you may not create a SubjectAccessReview for service account %q", agent)
		e.doubt()
	case err != nil:
		return err
	case allowed:
		e.add(checkRBAC, result.AnswerYes, "service account %q may list and watch the Secret of this name", agent)
	default:
		e.add(checkRBAC, result.AnswerNo, "service account %q may not list and watch the Secret of this name", agent)
		e.deny(delegation.NotReadable)
	}
	return nil
}

// addSecret adds what the caller may read of the Secret. It decides nothing.
func (o *ExplainOptions) addSecret(ctx context.Context, e *explanation) error {
	secret, err := o.Session.Cluster.Secret(ctx, o.Grant.secret.Namespace, o.Grant.secret.Name)
	switch {
	case errors.Is(err, discovery.ErrForbidden):
		e.add(checkSecret, result.AnswerUnknown, "you may not read it, so nothing more is known")
	case errors.Is(err, discovery.ErrNotFound):
		e.add(checkSecret, result.AnswerNo, "it does not exist")
	case err != nil:
		return err
	case len(secret.Data[corev1.TLSCertKey]) == 0 || len(secret.Data[corev1.TLSPrivateKeyKey]) == 0:
		e.add(checkSecret, result.AnswerNo, "it exists, of type %s, but has no tls.crt or no tls.key", secret.Type)
	default:
		e.add(checkSecret, result.AnswerYes, "it exists, of type %s; see also: pinniped ip-tls check --secret %s",
			secret.Type, o.Grant.secret)
	}
	return nil
}

func (o *ExplainOptions) table(e *explanation) ([]byte, error) {
	var out strings.Builder
	rows := make([][]string, 0, len(e.Checks))
	for _, check := range e.Checks {
		rows = append(rows, []string{check.Name, o.colour(check.Answer), check.Message})
	}
	if err := ui.Table(&out, []string{"check", "answer", "message"}, rows); err != nil {
		return nil, err
	}
	if len(e.NearMisses) > 0 {
		out.WriteString("\nNear misses:\n")
		for _, miss := range e.NearMisses {
			ui.Fprintf(&out, "  %s: %s\n", miss.Delegation, miss.Message)
		}
	}
	if e.Manifest != "" {
		fmt.Fprintf(&out, "\nThe owner of namespace %q can permit it with:\n\n%s", o.Grant.secret.Namespace,
			e.Manifest)
	}
	return []byte(out.String()), nil
}

func (o *ExplainOptions) colour(answer result.Answer) string {
	switch answer {
	case result.AnswerYes:
		return o.Style.Good(string(answer))
	case result.AnswerNo:
		return o.Style.Bad(string(answer))
	default:
		return o.Style.Caution(string(answer))
	}
}
