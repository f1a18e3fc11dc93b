package iptls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// Grants is how the objects of a delegation are made and removed; *discovery.Client is one.
type Grants interface {
	ApplyGrant(ctx context.Context, object map[string]any, opts discovery.ApplyOptions) error
	Grant(ctx context.Context, object map[string]any) (map[string]any, error)
	DeleteGrant(ctx context.Context, found map[string]any, dryRun bool) error
}

// Shared is what the commands about a Secret of another namespace have: which Secret, and for which agent.
type Shared struct {
	Connection

	Secret         string // NAMESPACE/NAME
	To             string // the agent's namespace
	ServiceAccount string

	secret types.NamespacedName
}

func (s *Shared) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&s.To, "to", "", "the agent's namespace, which is to use the Secret (default: as --namespace)")
	flags.StringVar(&s.ServiceAccount, "service-account", "", "the agent's service account (default: named as the installation, "+defaultAppName+")")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"to": cobra.NoFileCompletions, "service-account": cobra.NoFileCompletions,
	})
}

// oneSecret is the cobra.Command.Args of a command about one Secret.
func oneSecret(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return ui.WithHint(ui.Usage(errors.New("NAMESPACE/NAME of the Secret is missing")), "run %q", cmd.CommandPath()+" --help")
	case 1:
		return nil
	default:
		return factory.NoArgs(cmd, args[1:])
	}
}

func (s *Shared) validate() error {
	if !strings.Contains(s.Secret, "/") {
		return ui.WithHint(ui.Usage(fmt.Errorf("%q does not say in which namespace the Secret is", s.Secret)), "write NAMESPACE/NAME")
	}
	var err error
	if s.secret, err = delegation.SecretName(s.Secret, ""); err != nil {
		return ui.Usage(err)
	}
	if s.To != "" {
		if _, err := delegation.SecretName(s.To+"/x", ""); err != nil {
			return ui.Usage(fmt.Errorf("invalid value %q for --to: not a namespace", s.To))
		}
	}
	return nil
}

// agent returns the agent's service account. It asks the cluster for what the flags leave open.
func (s *Shared) agent(ctx context.Context) (types.NamespacedName, error) {
	account := types.NamespacedName{Namespace: cmp.Or(s.To, s.Namespace), Name: s.ServiceAccount}
	if account.Namespace == "" {
		var err error
		if account.Namespace, err = findNamespace(ctx, s.cluster, ""); err != nil {
			return account, err
		}
	}
	if account.Name == "" && s.cluster != nil {
		issuer, err := s.cluster.CredentialIssuer(ctx, s.CredentialIssuer)
		switch {
		case err == nil:
			account.Name = appName(issuer)
		case errors.Is(err, discovery.ErrUnreachable), errors.Is(err, discovery.ErrUnauthorized), ctx.Err() != nil:
			return account, err
		}
	}
	if account.Name == "" {
		account.Name = appNameOf(s.CredentialIssuer) // an owner may not be permitted to look
	}
	return account, nil
}

// DelegateOptions is everything `pinniped ip-tls delegate` needs; a test fills it directly.
type DelegateOptions struct {
	Shared

	Revoke bool
	DryRun string
}

func newDelegateCommand(f *factory.Factory) *cobra.Command {
	o := &DelegateOptions{Shared: Shared{Connection: connection(f)}}
	cmd := &cobra.Command{
		Use:   "delegate NAMESPACE/NAME",
		Short: "Permit the agent to use a Secret of another namespace",
		Long: `Permit the agent to serve the certificate in a Secret of another namespace, for example a wildcard certificate that several
teams share. It is for the owner of that namespace, and makes three objects there, by server-side apply:

  - a Role that permits to get, list and watch this one Secret, and nothing else
  - a RoleBinding of that Role to the agent's service account
  - a TLSCertificateDelegation that names the Secret and the agent's namespace

The agent asks for all of it again and again. As soon as one piece is gone (--revoke removes all of them), it stops to serve that
certificate, within five seconds, and serves the one that it generates. It never copies the Secret.

With --dry-run=client and --to, no cluster is asked: -o yaml then prints the objects for "kubectl apply" or GitOps.

Exit codes: 0 done, 1 failed, 2 wrong usage, 4 not permitted by the cluster, 124 timed out, 130 interrupted.`,
		Example: `  pinniped ip-tls delegate shared/wildcard-tls
  pinniped ip-tls set --secret shared/wildcard-tls --external-endpoint proxy.example.com

  # For GitOps: only print the objects, and ask no cluster
  pinniped ip-tls delegate shared/wildcard-tls --to pinniped-concierge --dry-run -o yaml > delegation.yaml

  # Take it back
  pinniped ip-tls delegate shared/wildcard-tls --revoke`,
		Args:              oneSecret,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Secret = args[0]
			return execute(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.Revoke, "revoke", false, "take the permission back: remove the objects that this command has made")
	flags.StringVar(&o.DryRun, "dry-run", dryRunNone, `change nothing: "client" only tells what would be done, "server" also lets the API server validate`)
	flags.Lookup("dry-run").NoOptDefVal = dryRunClient
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"dry-run": factory.CompleteValues(dryRunNone, dryRunClient, dryRunServer),
	})
	o.addFlags(cmd)
	o.Connection.addFlags(cmd, f, 30*time.Second, "text", "json", "yaml")
	return cmd
}

// Validate checks the argument and the flags before anything is read.
func (o *DelegateOptions) Validate() error {
	if err := o.Connection.validate("text", "json", "yaml"); err != nil {
		return err
	}
	if err := oneOf("dry-run", o.DryRun, dryRunNone, dryRunClient, dryRunServer); err != nil {
		return err
	}
	return o.validate()
}

// Complete loads the kubeconfig, where the cluster will be asked.
func (o *DelegateOptions) Complete() error {
	if o.DryRun == dryRunClient && !o.Revoke && cmp.Or(o.To, o.Namespace) != "" {
		o.progress = o.Progress()
		return nil
	}
	return o.open()
}

// Run makes or removes the objects, and prints them.
func (o *DelegateOptions) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Timeout)
	defer cancel()
	agent, err := o.agent(ctx)
	if err != nil {
		return withCodes(err)
	}
	if agent.Namespace == o.secret.Namespace {
		return ui.WithHint(ui.Usage(fmt.Errorf("Secret %q is in the agent's own namespace, where it needs no delegation", o.secret)),
			"use it with: pinniped ip-tls set --secret %s", o.secret.Name)
	}
	objects := delegation.Grant{Secret: o.secret, Namespace: agent.Namespace, ServiceAccount: agent.Name}.Objects()
	if o.Revoke {
		return o.revoke(ctx, agent, objects)
	}
	done := map[string]string{}
	if o.DryRun != dryRunClient {
		if done, err = o.apply(ctx, objects); err != nil {
			return withCodes(err)
		}
	}
	if o.DryRun == dryRunNone {
		o.progress.Done("The agent in namespace %q may use Secret %q: pinniped ip-tls set --secret %s", agent.Namespace, o.secret, o.secret)
	}
	return o.print(objects, func(object map[string]any) string { return cmp.Or(done[describe(object)], actionApplied) })
}

const actionApplied = "applied"

// apply makes the objects, and tells what it did with each. That the kind is missing is found out before anything is made.
func (o *DelegateOptions) apply(ctx context.Context, objects []map[string]any) (map[string]string, error) {
	if err := o.kindIsThere(ctx); err != nil {
		return nil, err
	}
	done := map[string]string{}
	for _, object := range objects {
		before := o.version(ctx, object)
		err := o.cluster.ApplyGrant(ctx, object, discovery.ApplyOptions{FieldManager: fieldManager, DryRun: o.DryRun == dryRunServer})
		switch {
		case errors.Is(err, discovery.ErrNotFound):
			return nil, ui.WithHint(fmt.Errorf("making %s: %w", describe(object), err), "is there a namespace %q?", o.secret.Namespace)
		case err != nil:
			return nil, fmt.Errorf("making %s: %w", describe(object), err)
		}
		done[describe(object)] = actionApplied
		if before != "" && o.DryRun == dryRunNone && o.version(ctx, object) == before {
			done[describe(object)] = actionUnchanged
		}
	}
	return done, nil
}

// version is the resourceVersion of what is there; empty when nothing is, or when it may not be looked at: whoever may make an object
// need not be permitted to read it.
func (o *DelegateOptions) version(ctx context.Context, object map[string]any) string {
	found, err := o.cluster.Grant(ctx, object)
	if err != nil {
		return ""
	}
	metadata, _ := found["metadata"].(map[string]any)
	version, _ := metadata["resourceVersion"].(string)
	return version
}

const kindHint = "install the kind: kubectl apply --server-side -k deploy/tlscertificatedelegation of pinniped's repository, or Contour, which brings it"

func (o *DelegateOptions) kindIsThere(ctx context.Context) error {
	_, err := o.cluster.Delegations(ctx, o.secret.Namespace)
	switch {
	case errors.Is(err, discovery.ErrNotFound):
		return ui.WithHint(fmt.Errorf("the cluster has no %ss (%s/%s), so that nothing can be delegated", delegation.Kind, delegation.Group, delegation.Version), kindHint)
	case errors.Is(err, discovery.ErrForbidden):
		return nil // whoever may make them need not be permitted to list them
	}
	return err
}

// revoke removes the objects, the delegation first, and says when others still permit the same.
func (o *DelegateOptions) revoke(ctx context.Context, agent types.NamespacedName, objects []map[string]any) error {
	removed := []map[string]any{}
	for i := len(objects) - 1; i >= 0; i-- {
		object := objects[i]
		found, err := o.cluster.Grant(ctx, object)
		if errors.Is(err, discovery.ErrNotFound) {
			continue
		}
		if err != nil {
			return withCodes(fmt.Errorf("looking for %s: %w", describe(object), err))
		}
		if !ours(found) {
			o.progress.Warn("%s is not of this command, and is left as it is", describe(object))
			continue
		}
		if o.DryRun != dryRunClient {
			err := o.cluster.DeleteGrant(ctx, found, o.DryRun == dryRunServer)
			if err != nil && !errors.Is(err, discovery.ErrNotFound) {
				return withCodes(fmt.Errorf("removing %s: %w", describe(object), err))
			}
		}
		removed = append(removed, object)
	}
	if len(removed) == 0 {
		o.progress.Info("There is nothing to remove")
	}
	if o.DryRun == dryRunNone {
		o.stillPermitted(ctx, agent)
	}
	return o.print(removed, func(map[string]any) string { return "removed" })
}

// stillPermitted warns about other delegations of the same Secret. It is no error when these may not be looked at.
func (o *DelegateOptions) stillPermitted(ctx context.Context, agent types.NamespacedName) {
	all, err := o.cluster.Delegations(ctx, o.secret.Namespace)
	if err != nil {
		return
	}
	if decision := delegation.Decide(o.secret, agent.Namespace, all); decision.Permitted {
		o.progress.Warn("%s %q still delegates Secret %q to namespace %q", delegation.Kind, decision.By, o.secret, agent.Namespace)
	}
}

func ours(object map[string]any) bool {
	metadata, _ := object["metadata"].(map[string]any)
	labels, _ := metadata["labels"].(map[string]any)
	for key, value := range delegation.Labels() {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// describe names an object as kubectl does: role.rbac.authorization.k8s.io/NAME.
func describe(object map[string]any) string {
	group, _, _ := strings.Cut(fmt.Sprint(object["apiVersion"]), "/")
	metadata, _ := object["metadata"].(map[string]any)
	return fmt.Sprintf("%s.%s/%v in namespace %v", strings.ToLower(fmt.Sprint(object["kind"])), group, metadata["name"], metadata["namespace"])
}

// print writes the objects to stdout, as kubectl takes them, or what was done with them.
func (o *DelegateOptions) print(objects []map[string]any, done func(object map[string]any) string) error {
	if o.Output == "json" {
		return o.write(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects}, nil)
	}
	format := o.Output
	o.Output = "text" // a list is no stream of documents
	return o.write(objects, func() ([]byte, error) {
		if format == "yaml" {
			return delegation.YAML(objects)
		}
		suffix := ""
		if o.DryRun != dryRunNone {
			suffix = fmt.Sprintf(" (%s dry run)", o.DryRun)
		}
		var out strings.Builder
		for _, object := range objects {
			fmt.Fprintf(&out, "%s %s%s\n", describe(object), done(object), suffix)
		}
		return []byte(out.String()), nil
	})
}
