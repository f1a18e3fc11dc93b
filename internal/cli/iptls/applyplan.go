package iptls

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// ApplyOptions is everything `pinniped ip-tls apply` needs; a test fills it directly.
type ApplyOptions struct {
	Changing

	Filename string // a path, or "-" for stdin

	planned *Plan
	request request
}

func newApplyCommand(f *factory.Factory) *cobra.Command {
	o := &ApplyOptions{Changing: Changing{Connection: connection(f)}}
	cmd := &cobra.Command{
		Use:   "apply -f PLAN",
		Short: "Do what a dry run has planned, if nothing has moved since",
		Long: `Do what a dry run of "ip-tls set", "unset" or "undo" has planned. The dry run's result, with -o yaml or -o json, is the plan: it names the
CredentialIssuer with its resourceVersion, the Secret with the hash of its certificate, the CA bundle, and the configuration that is
wanted; it holds no key. So it can be reviewed and merged before it is applied.

Nothing is changed when the CredentialIssuer has another resourceVersion than in the plan, or the Secret another certificate: the
command says what has moved and ends with exit code 3; then plan again. Else everything is checked anew, as time has passed, and the
command goes on as "ip-tls set" does: it waits until the endpoint presents the certificate, and goes back when that does not happen.

When the CredentialIssuer is configured like this already, and the Secret is the planned one, the command says "unchanged".

Exit codes: 0 done or unchanged, 1 failed, 2 wrong usage (also: not a plan, or of another version), 3 refused (something has
moved, or by a check), 4 not permitted by the cluster, 5 did not take effect in time, 124 timed out before anything was changed,
130 interrupted.`,
		Example: `  pinniped ip-tls set --secret proxy-tls --dry-run=server --diff -o yaml > plan.yaml
  pinniped ip-tls apply -f plan.yaml

  # From a pipeline
  fetch-artifact plan.yaml | pinniped ip-tls apply -f - -o json`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return execute(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVarP(&o.Filename, "filename", "f", "", `the plan: a file, or "-" for stdin (required)`)
	o.addFlags(cmd, f)
	return cmd
}

// Validate checks the flags before anything is read.
func (o *ApplyOptions) Validate() error {
	if o.Filename == "" {
		return ui.WithHint(ui.Usage(errors.New("--filename is missing")), "name the plan: -f plan.yaml")
	}
	return o.validate()
}

// Complete reads the plan and loads the kubeconfig.
func (o *ApplyOptions) Complete() error {
	content, err := readFile("the plan", o.Filename, o.In, maxPlan)
	if err != nil {
		return err
	}
	file, err := readPlan(content, nameOf(o.Filename))
	if err != nil {
		return err
	}
	o.planned = file.Plan
	if name := o.planned.CredentialIssuer.Name; o.CredentialIssuer != "" && o.CredentialIssuer != name {
		return ui.Usage(fmt.Errorf("the plan is for CredentialIssuer %q, not for %q", name, o.CredentialIssuer))
	}
	o.CredentialIssuer = o.planned.CredentialIssuer.Name
	o.request.allow = o.planned.Allow
	return o.open()
}

// Run compares, checks, applies, waits and prints.
func (o *ApplyOptions) Run(ctx context.Context) error { return o.run(ctx, &o.request, o) }

func (o *ApplyOptions) command() string { return "apply" }

// errMoved marks a refusal because the plan is about something else by now.
var errMoved = errors.New("the plan is out of date")

// look compares what is there with what the plan is about, and judges what is wanted.
func (o *ApplyOptions) look(ctx context.Context, first bool) (*state, *plan, error) {
	if o.request.namespace != o.planned.Namespace {
		return nil, nil, ui.Usage(fmt.Errorf("the plan is for an agent in namespace %q, and the agent's namespace is %q", o.planned.Namespace, o.request.namespace))
	}
	issuer, err := readIssuer(ctx, o.cluster, o.CredentialIssuer)
	if err != nil {
		return nil, nil, err
	}
	st, p, err := o.lookAt(ctx, o.request, issuer, o.planned.Wanted)
	if err != nil {
		return nil, nil, err
	}
	p.nameWanted(o.planned.Wanted, issuer)
	if first {
		o.progress.Done("Read the plan of \"ip-tls %s\" of %s", o.planned.Command, o.planned.At.Format(time.RFC3339))
	}
	moved := o.planned.moved(st)
	if already := reflect.DeepEqual(targetOf(issuer.Spec.ImpersonationProxy), o.planned.Wanted); already {
		moved = o.planned.secretMoved(st.secret) // its own change has moved the resourceVersion
	}
	if len(moved) > 0 {
		p.moved = moved
		for _, one := range moved {
			o.progress.Fail("%s", one)
		}
		err := fmt.Errorf("%w: %s", errMoved, strings.Join(moved, "; "))
		return st, p, ui.WithExitCode(ui.WithHint(err, `%splan again: pinniped ip-tls %s ... --dry-run=server -o yaml > plan.yaml`, nothingChanged, o.planned.Command), ui.ExitRefused)
	}
	o.say(st, p)
	return st, p, nil
}

// nameWanted fills in what server-side apply needs to know: which fields the plan names.
func (p *plan) nameWanted(wanted target, issuer *configv1alpha1.CredentialIssuer) {
	now := targetOf(issuer.Spec.ImpersonationProxy)
	if wanted.ExternalEndpoint != now.ExternalEndpoint {
		p.req.endpoint = &wanted.ExternalEndpoint
	}
	if wanted.LoadBalancerIP != now.LoadBalancerIP {
		p.req.loadBalancerIP = &wanted.LoadBalancerIP
	}
}

// apply does what the planned command would have done.
func (o *ApplyOptions) apply(ctx context.Context, st *state, p *plan) (*configv1alpha1.CredentialIssuer, error) {
	if o.planned.Command != "set" || p.wanted.TLS == nil {
		return o.merge(ctx, st, p)
	}
	return o.cluster.ApplyCredentialIssuer(ctx, st.issuer.Name, annotated(applyObject(st.issuer, p.wanted, p.req), p.annotations),
		discovery.ApplyOptions{FieldManager: fieldManager, Force: true, DryRun: o.DryRun == dryRunServer})
}
