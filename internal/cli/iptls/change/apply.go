package change

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// ApplyOptions is everything `pinniped ip-tls apply` needs; a test fills it directly.
type ApplyOptions struct {
	Session *session.Session
	Flags   Flags

	Filename string // a path, or "-" for stdin

	planned *Plan
	request plan.Request
}

// NewApplyCommand returns `pinniped ip-tls apply`.
func NewApplyCommand(f *factory.Factory) *cobra.Command {
	o := &ApplyOptions{Session: session.New(f)}
	cmd := &cobra.Command{
		Use:   "apply -f PLAN",
		Short: "Apply a plan file, if the cluster has not changed since",
		Long: `Do what a dry run of "ip-tls set", "unset" or "undo" has planned. The dry run's result, with -o yaml or
-o json, is the plan: it names the CredentialIssuer with the generation of its spec, the Secret with the hash of its
certificate, the CA bundle, and the configuration that is wanted; it holds no key. So it can be reviewed and merged
before it is applied. Of "ip-tls set --cert" there is no such plan: the dry run says so, and apply refuses it.

Nothing is changed when the spec of the CredentialIssuer is not the one that the plan was made for, or the Secret has
another certificate: the command says what has moved and ends with exit code 3; then plan again. What the agent
reports in the status meanwhile does not make a plan invalid. Otherwise all is checked anew, as time has passed, and the command goes on as "ip-tls set" does: it waits until the endpoint presents the
certificate, and goes back when that does not happen.

When the CredentialIssuer is configured like this already, and the Secret is the planned one, the command says
"unchanged".

Exit codes: 0 done or unchanged, 1 failed, 2 wrong usage (also: not a plan, or of another version), 3 refused
(something has moved, or by a check), 4 not permitted by the cluster, 5 did not take effect in time, 124 timed out
before anything was changed, 130 interrupted.`,
		Example: `  pinniped ip-tls set --secret proxy-tls --dry-run=server --diff -o yaml > plan.yaml
  pinniped ip-tls apply -f plan.yaml

  # From a pipeline
  fetch-artifact plan.yaml | pinniped ip-tls apply -f - -o json`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return factory.Execute(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVarP(&o.Filename, "filename", "f", "", `the plan: a file, or "-" for stdin (required)`)
	o.Flags.AddFlags(cmd, f, o.Session)
	return cmd
}

// Validate checks the flags before anything is read.
func (o *ApplyOptions) Validate() error {
	if o.Filename == "" {
		return ui.WithHint(ui.Usage(errors.New("--filename is missing")), "name the plan: -f plan.yaml")
	}
	return o.Flags.Validate(o.Session)
}

// Complete reads the plan and loads the kubeconfig.
func (o *ApplyOptions) Complete() error {
	if err := o.readPlan(); err != nil {
		return err
	}
	return o.Session.Open()
}

func (o *ApplyOptions) readPlan() error {
	content, err := session.ReadFile("the plan", o.Filename, o.Session.In, maxPlan)
	if err != nil {
		return err
	}
	file, err := readPlan(content, session.NameOf(o.Filename))
	if err != nil {
		return err
	}
	o.planned = (*Plan)(file.Plan)
	if name := o.planned.CredentialIssuer.Name; o.Session.CredentialIssuer != "" && o.Session.CredentialIssuer != name {
		return ui.Usage(fmt.Errorf("the plan is for CredentialIssuer %q, not for %q", name, o.Session.CredentialIssuer))
	}
	o.Session.CredentialIssuer = o.planned.CredentialIssuer.Name
	o.request.Allow = o.planned.Allow
	return nil
}

// Run compares, checks, applies, waits and prints.
func (o *ApplyOptions) Run(ctx context.Context) error {
	return doAndPrint(ctx, &o.request, Change{Session: o.Session, Flags: o.Flags, Verb: o})
}

// Name is what records call the command.
func (o *ApplyOptions) Name() string { return "apply" }

// errMoved marks a refusal because what the plan was made for has changed.
var errMoved = errors.New("the plan is out of date")

// Evaluate compares what is in the cluster with what the plan was made for, and evaluates the configuration that it
// wants.
func (o *ApplyOptions) Evaluate(ctx context.Context, first bool) (*Proposal, error) {
	if o.request.Namespace != o.planned.Namespace {
		return nil, ui.Usage(fmt.Errorf("the plan is for an agent in namespace %q, and the agent's namespace is %q",
			o.planned.Namespace, o.request.Namespace))
	}
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return nil, err
	}
	wanted := plan.Target(o.planned.Wanted)
	st, err := o.Session.GatherTarget(ctx, issuer, o.request.Namespace, wanted)
	if err != nil {
		return nil, err
	}
	p := &Proposal{
		Snapshot: st,
		Plan:     plan.EvaluateTarget(o.request, st, wanted.In(issuer.Spec.ImpersonationProxy)),
	}
	nameWanted(p.Plan, wanted, issuer)
	if first {
		o.Session.Progress.Done("Read the plan of \"ip-tls %s\" of %s", o.planned.Command,
			o.planned.At.Format(time.RFC3339))
	}
	moved := o.planned.moved(st)
	if already := reflect.DeepEqual(plan.TargetOf(issuer.Spec.ImpersonationProxy), wanted); already {
		moved = o.planned.secretMoved(st.Secret) // its own change has moved the generation
	}
	if len(moved) > 0 {
		p.Moved = moved
		err := fmt.Errorf("%w: %s", errMoved, strings.Join(moved, "; "))
		return p, ui.WithExitCode(ui.WithHint(err, `%splan again: pinniped ip-tls %s ... --dry-run=server -o yaml `+
			`> plan.yaml`, plan.NothingChanged, o.planned.Command), ui.ExitRefused)
	}
	Say(o.Session.Progress, st, p.Plan)
	return p, nil
}

// nameWanted fills in which fields the plan changes, which server-side apply needs to know.
func nameWanted(p *plan.Plan, wanted plan.Target, issuer *configv1alpha1.CredentialIssuer) {
	now := plan.TargetOf(issuer.Spec.ImpersonationProxy)
	if wanted.ExternalEndpoint != now.ExternalEndpoint {
		p.Request.Endpoint = &wanted.ExternalEndpoint
	}
	if wanted.Mode != now.Mode {
		p.Request.Mode = wanted.Mode
	}
	if wanted.LoadBalancerIP != now.LoadBalancerIP {
		p.Request.LoadBalancerIP = &wanted.LoadBalancerIP
	}
}

// Apply does what the planned command would have done.
func (o *ApplyOptions) Apply(ctx context.Context, p *Proposal) (*configv1alpha1.CredentialIssuer, error) {
	if o.planned.Command != "set" || p.Plan.Wanted.TLS == nil {
		return Merge(ctx, o.Session.Cluster, p, o.Flags.DryRun)
	}
	return o.Session.Cluster.ApplyCredentialIssuer(ctx, p.Snapshot.Issuer.Name,
		plan.Annotated(plan.ApplyObject(p.Snapshot.Issuer, p.Plan.Wanted, p.Plan.Request), p.Annotations),
		discovery.ApplyOptions{
			FieldManager: plan.FieldManager, Force: true,
			DryRun: o.Flags.DryRun == session.DryRunServer,
		})
}
