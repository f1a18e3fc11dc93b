// Package delegate implements the commands for a Secret of another namespace: `pinniped ip-tls delegate` permits the
// agent to use it, and `pinniped explain` says why the agent may or may not.
package delegate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Options holds the inputs of `pinniped ip-tls delegate`; a test fills it directly.
type Options struct {
	Session *session.Session
	Grant   Grant
	Revoke  bool
	Allow   []string
	DryRun  string
	allow   []certs.Code
}

// NewCommand returns `pinniped ip-tls delegate`.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{Session: session.New(f)}
	cmd := &cobra.Command{
		Use: "delegate NAMESPACE/NAME", Short: "Let the agent use a Secret in another namespace",
		Long: `Permit the agent to serve the certificate in a Secret in another namespace, such as a wildcard certificate
that several teams share. The owner of that namespace runs this command. It creates, with server-side apply:

  - a Role that permits only get, list and watch on this Secret
  - a RoleBinding that grants the Role to the agent's service account
  - a TLSCertificateDelegation that names the Secret and the agent's namespace

The agent checks these objects continuously. If one of them is gone (--revoke removes them all), the agent stops serving
that certificate within five seconds and serves its generated certificate instead. The agent never copies the Secret.

If the CredentialIssuer names this Secret, --revoke is refused while it would break clients; "pinniped ip-tls history"
lists these clients. If you may not read the CredentialIssuer, the output says so.

With --dry-run=client and --to, the command needs no cluster. Add -o yaml to print the objects for "kubectl apply" or
GitOps.

Exit codes: 0 done, 3 not revoked because clients would stop verifying (see "pinniped help exit-codes")`,
		Example: `  pinniped ip-tls delegate shared/wildcard-tls
  pinniped ip-tls set --secret shared/wildcard-tls --external-endpoint proxy.example.com

  # For GitOps: only print the objects, without a cluster
  pinniped ip-tls delegate shared/wildcard-tls --to pinniped-concierge --dry-run -o yaml > delegation.yaml

  # Revoke it
  pinniped ip-tls delegate shared/wildcard-tls --revoke`,
		Args: oneSecret, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Grant.Secret = args[0]
			return factory.Execute(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.Revoke, "revoke", false, "revoke the permission: delete the objects that this command created")
	session.AddAllowFlag(cmd, &o.Allow, string(certs.OldClientsBreak))
	flags.StringVar(&o.DryRun, "dry-run", session.DryRunNone,
		`change nothing: with "client", only print the changes; with "server", also have the API server validate them`)
	flags.Lookup("dry-run").NoOptDefVal = session.DryRunClient
	values := factory.CompleteValues(session.DryRunNone, session.DryRunClient, session.DryRunServer)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{"dry-run": values})
	o.Grant.addFlags(cmd)
	o.Session.AddFlags(cmd, f, 30*time.Second, factory.Formats()...)
	return cmd
}

// Validate checks the argument and the flags.
func (o *Options) Validate() error {
	var err error
	o.allow, err = session.AllowedCodes(o.Allow)
	return cmp.Or(o.Session.Validate(factory.Formats()...),
		factory.CheckOneOf("dry-run", o.DryRun, session.DryRunNone, session.DryRunClient, session.DryRunServer),
		err, o.Grant.validate())
}

// Complete loads the kubeconfig if the cluster is needed.
func (o *Options) Complete() error {
	if o.DryRun == session.DryRunClient && !o.Revoke && cmp.Or(o.Grant.To, o.Session.Namespace) != "" {
		o.Session.Progress = o.Session.NewProgress()
		return nil
	}
	return o.Session.Open()
}

// Run creates or deletes the objects, and prints them.
func (o *Options) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Session.Timeout)
	defer cancel()
	grant, err := o.Grant.grant(ctx, o.Session)
	if err != nil {
		return session.WithCodes(err)
	}
	if grant.Namespace == o.Grant.secret.Namespace {
		return ui.WithHint(ui.Usage(fmt.Errorf("the Secret %q is in the agent's own namespace, where it needs no delegation",
			o.Grant.secret)), "use it with: pinniped ip-tls set --secret %s", o.Grant.secret.Name)
	}
	if o.Revoke {
		return o.revoke(ctx, grant)
	}
	objects := grant.Objects()
	unchanged := map[string]bool{}
	if o.DryRun != session.DryRunClient {
		if unchanged, err = o.apply(ctx, objects); err != nil {
			return o.denied(err)
		}
	}
	if o.DryRun == session.DryRunNone {
		o.Session.Progress.Done("The agent in namespace %q may now use Secret %q; to serve it: pinniped ip-tls set "+
			"--secret %s", grant.Namespace, o.Grant.secret, o.Grant.secret)
	}
	return o.print(objects, "applied", unchanged)
}

// apply creates or updates the objects, unless the cluster serves no delegations, and returns which did not change.
func (o *Options) apply(ctx context.Context, objects []map[string]any) (map[string]bool, error) {
	_, err := o.Session.Cluster.Delegations(ctx, o.Grant.secret.Namespace)
	switch {
	case errors.Is(err, discovery.ErrNotFound):
		return nil, ui.WithHint(fmt.Errorf("the cluster has no %ss (%s/%s), so nothing can be delegated",
			delegation.Kind, delegation.Group, delegation.Version), kindHint)
	case errors.Is(err, discovery.ErrForbidden): // not every user who may create them may list them
	case err != nil:
		return nil, err
	}
	unchanged := map[string]bool{}
	for _, object := range objects {
		before := o.version(ctx, object)
		err := o.Session.Cluster.ApplyGrant(ctx, object,
			discovery.ApplyOptions{FieldManager: plan.FieldManager, DryRun: o.DryRun == session.DryRunServer})
		if err != nil {
			err = fmt.Errorf("creating %s: %w", describe(object), err)
			if errors.Is(err, discovery.ErrNotFound) {
				err = ui.WithHint(err, "is there a namespace %q?", o.Grant.secret.Namespace)
			}
			return nil, err
		}
		unchanged[describe(object)] = before != "" && o.DryRun == session.DryRunNone && o.version(ctx, object) == before
	}
	return unchanged, nil
}

func (o *Options) denied(err error) error {
	if !errors.Is(err, discovery.ErrForbidden) {
		return err
	}
	return ui.WithHint(session.WithCodes(err), "ask the owner of namespace %q to run the same command",
		o.Grant.secret.Namespace)
}

// version returns the resourceVersion in the cluster, if known: who may create an object may be forbidden to read it.
func (o *Options) version(ctx context.Context, object map[string]any) string {
	found, _ := o.Session.Cluster.Grant(ctx, object)
	return (&unstructured.Unstructured{Object: found}).GetResourceVersion()
}

const kindHint = "install the CRD: kubectl apply --server-side -k deploy/tlscertificatedelegation in pinniped's " +
	"repository, or install Contour"

// revoke deletes the objects, the delegation first, and warns if others still permit the same.
func (o *Options) revoke(ctx context.Context, grant delegation.Grant) error {
	var there, removed []map[string]any
	for _, object := range slices.Backward(grant.Objects()) {
		found, err := o.Session.Cluster.Grant(ctx, object)
		if errors.Is(err, discovery.ErrNotFound) {
			continue
		}
		if err != nil {
			return o.denied(fmt.Errorf("looking for %s: %w", describe(object), err))
		}
		if !labels.SelectorFromSet(delegation.Labels()).Matches(
			labels.Set((&unstructured.Unstructured{Object: found}).GetLabels())) {
			o.Session.Progress.Warn("%s was not created by this command, so it stays unchanged", describe(object))
			continue
		}
		there, removed = append(there, found), append(removed, object)
	}
	if len(there) == 0 {
		o.Session.Progress.Info("There is nothing to remove")
	} else if err := o.judge(ctx, grant.Namespace); err != nil {
		return err
	}
	for i := 0; i < len(there) && o.DryRun != session.DryRunClient; i++ {
		err := o.Session.Cluster.DeleteGrant(ctx, there[i], o.DryRun == session.DryRunServer)
		if err != nil && !errors.Is(err, discovery.ErrNotFound) {
			return o.denied(fmt.Errorf("removing %s: %w", describe(removed[i]), err))
		}
	}
	if o.DryRun == session.DryRunNone { // warn about other delegations of the same Secret
		all, err := o.Session.Cluster.Delegations(ctx, o.Grant.secret.Namespace)
		if decision := delegation.Decide(o.Grant.secret, grant.Namespace, all); err == nil && decision.Permitted {
			o.Session.Progress.Warn("%s %q still delegates Secret %q to namespace %q", delegation.Kind, decision.By,
				o.Grant.secret, grant.Namespace)
		}
	}
	return o.print(removed, "removed", nil)
}

// judge refuses to revoke the permission if that would break clients that verify now, because the agent serves this
// Secret. An owner who may not read the status gets a warning, and may revoke it.
func (o *Options) judge(ctx context.Context, namespace string) error {
	issuer, err := o.Session.ReadIssuer(ctx)
	if err == nil {
		configured := issuer.Spec.ImpersonationProxy.TLS
		if configured == nil || configured.SecretName != o.Grant.secret.String() {
			return nil
		}
		var st *plan.Snapshot
		without := *issuer.Spec.ImpersonationProxy.DeepCopy()
		without.TLS = nil
		if st, err = o.Session.Gather(ctx, issuer, namespace, without); err == nil {
			p := plan.Evaluate(plan.Request{Namespace: namespace, Allow: o.allow}, st, without)
			o.Session.Progress.Warn("CredentialIssuer %q uses this Secret, so the agent will serve its generated certificate "+
				"instead", issuer.Name)
			for _, f := range p.Report.Findings {
				if f.Allowed || f.Severity == certs.SeverityWarning {
					o.Session.Progress.Warn("%s", f)
				}
			}
			return plan.Refusal(p.Report, plan.NothingChanged)
		}
	}
	if errors.Is(err, discovery.ErrForbidden) || errors.Is(err, discovery.ErrNoCredentialIssuer) {
		o.Session.Progress.Warn("Cannot tell whether the agent serves this Secret, or which clients the change would "+
			"break: %v", err)
		return nil
	}
	return err
}

// describe names an object as kubectl does: role.rbac.authorization.k8s.io/NAME.
func describe(object map[string]any) string {
	u := &unstructured.Unstructured{Object: object}
	kind := u.GroupVersionKind()
	return fmt.Sprintf("%s.%s/%s in namespace %s", strings.ToLower(kind.Kind), kind.Group, u.GetName(), u.GetNamespace())
}

func (o *Options) print(objects []map[string]any, done string, unchanged map[string]bool) error {
	var text []byte
	var err error
	switch o.Session.Output {
	case "json":
		return ui.PrintAs(o.Session.Out, "json", map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	case "yaml": // kubectl needs separate documents
		if text, err = delegation.YAML(objects); err != nil {
			return err
		}
	default:
		suffix := ""
		if o.DryRun != session.DryRunNone {
			suffix = fmt.Sprintf(" (%s dry run)", o.DryRun)
		}
		for _, object := range objects {
			action := done
			if unchanged[describe(object)] {
				action = "unchanged"
			}
			text = fmt.Appendf(text, "%s %s%s\n", ui.Plain(describe(object)), action, suffix)
		}
	}
	if _, err := o.Session.Out.Write(text); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

// Grant identifies a permission: a Secret of another namespace, and the agent that may use it.
type Grant struct {
	Secret         string // NAMESPACE/NAME
	To             string // the agent's namespace
	ServiceAccount string
	secret         types.NamespacedName
}

func (g *Grant) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&g.To, "to", "", "the agent's namespace (default: the value of --namespace)")
	flags.StringVar(&g.ServiceAccount, "service-account", "", "the agent's service account (default: the one in the "+
		"status of the CredentialIssuer, else the default name, "+discovery.DefaultAppName+")")
	none := cobra.NoFileCompletions
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{"to": none, "service-account": none})
}

func oneSecret(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return ui.WithHint(ui.Usage(errors.New("NAMESPACE/NAME of the Secret is missing")), "run %q",
			cmd.CommandPath()+" --help")
	}
	return factory.NoArgs(cmd, args[1:])
}

func (g *Grant) validate() error {
	if !strings.Contains(g.Secret, "/") {
		hint := "write NAMESPACE/NAME"
		if slices.Contains(certs.Codes(), certs.Code(g.Secret)) {
			hint = fmt.Sprintf("%q is a finding: run %q", g.Secret, "pinniped explain "+g.Secret)
		}
		return ui.WithHint(ui.Usage(fmt.Errorf("%q lacks the namespace of the Secret", g.Secret)), "%s", hint)
	}
	var err error
	if g.secret, err = delegation.SecretName(g.Secret, ""); err != nil {
		return ui.Usage(err)
	}
	if _, err := delegation.SecretName(g.To+"/x", ""); g.To != "" && err != nil {
		return ui.Usage(fmt.Errorf("invalid value %q for --to: not a namespace", g.To))
	}
	return nil
}

// grant completes the permission. It reads from the cluster what flags do not set.
func (g *Grant) grant(ctx context.Context, s *session.Session) (full delegation.Grant, err error) {
	full = delegation.Grant{Secret: g.secret, Namespace: cmp.Or(g.To, s.Namespace), ServiceAccount: g.ServiceAccount}
	if full.Namespace == "" {
		if full.Namespace, err = s.FindNamespace(ctx); err != nil {
			return full, err
		}
	}
	if full.ServiceAccount == "" && s.Cluster != nil {
		issuer, err := s.Cluster.CredentialIssuer(ctx, s.CredentialIssuer)
		switch {
		case err == nil:
			names, _ := discovery.Objects(issuer, full.Namespace)
			full.ServiceAccount = names.ServiceAccount
		case errors.Is(err, discovery.ErrUnreachable), errors.Is(err, discovery.ErrUnauthorized), ctx.Err() != nil:
			return full, err
		}
	}
	// An owner may not be able to read it.
	full.ServiceAccount = cmp.Or(full.ServiceAccount, discovery.AppName(s.CredentialIssuer))
	return full, nil
}
