package rotate

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Run does what is due, or shows it.
func (o *Options) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Session.Timeout)
	defer cancel()
	if err := o.Session.Locate(ctx, &o.request); err != nil {
		return err
	}
	done := &Result{namespace: o.request.Namespace}
	if o.Flags.DryRun != session.DryRunNone {
		done.DryRun = result.DryRun(o.Flags.DryRun)
	}
	err := o.rotate(ctx, done)
	if done.Outcome == "" && ui.ExitCodeOf(err) == ui.ExitRefused {
		done.Outcome = result.OutcomeRefused
	}
	if done.Outcome == "" {
		return err
	}
	return o.printRotation(done, err)
}

func (o *Options) rotate(ctx context.Context, done *Result) error {
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return err
	}
	o.Session.CredentialIssuer, done.CredentialIssuer = issuer.Name, issuer.Name
	if o.Forget {
		return o.forget(ctx, issuer, done)
	}
	r, err := rotation.Read(issuer)
	if err != nil {
		return ui.WithHint(err, "it was written by another version of pinniped, or changed by hand; --forget gives "+
			"the rotation up and leaves the configuration as it is")
	}
	done.show(r)
	switch {
	case o.Status:
		return o.showStatus(ctx, issuer, r, done)
	case o.Abort:
		return o.abort(ctx, issuer, r, done)
	default:
		return o.forward(ctx, issuer, r, done)
	}
}

// showStatus fills in the result of --status.
func (o *Options) showStatus(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation.Record,
	done *Result,
) error {
	done.Outcome = result.OutcomeShown
	if r == nil {
		return nil
	}
	if r.Active() {
		if fields := r.Edited(issuer.Spec.ImpersonationProxy); len(fields) > 0 {
			done.Edited = fields
			o.Session.Progress.Warn("somebody else has changed %s since", strings.Join(fields, ", "))
		}
		if r.Phase == rotation.PhaseAdvertised && !r.Aborting {
			_, err := o.preconditions(ctx, issuer, r, done)
			return err
		}
	}
	return nil
}

// forward does the steps that are due.
func (o *Options) forward(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation.Record,
	done *Result,
) error {
	r, begun, err := o.begin(ctx, issuer, r)
	if err != nil {
		return err
	}
	if !begun {
		if err := o.sameRotation(r, issuer); err != nil {
			return err
		}
	}
	done.show(r)
	if already, err := o.chosen(r, done); already || err != nil {
		return err
	}
	confirmed := !r.Active()
	for r.Next() != 0 {
		step := r.Next()
		if !confirmed {
			if err := o.confirm(ctx, r); err != nil {
				done.recordFailure(err, nil)
				return err
			}
		}
		if step == rotation.StepSwitch {
			if ready, err := o.isTime(ctx, r, done); !ready || err != nil {
				return err
			}
		}
		next, one, err := o.step(ctx, r, step)
		if one != nil {
			done.Changes = append(done.Changes, one)
		}
		if err != nil {
			done.recordFailure(err, one)
			return err
		}
		done.recordStep(next, o.Flags.DryRun)
		if o.Flags.DryRun != session.DryRunNone {
			return nil
		}
		r, confirmed = next, o.Flags.Wait
		if o.Step != "" {
			return nil
		}
	}
	if done.Outcome == "" {
		done.Outcome = result.OutcomeUnchanged
		o.Session.Progress.Done("The rotation to %s is done already", r.Destination())
	}
	return nil
}

// isTime says whether step 3 may be done now. If not, it returns an error. With --step 2 it only reports that step 3
// may be done, and returns false, so that the command ends.
func (o *Options) isTime(ctx context.Context, r *rotation.Record, done *Result) (bool, error) {
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return false, err
	}
	ready, err := o.preconditions(ctx, issuer, r, done)
	if err != nil {
		return false, err
	}
	if !ready {
		done.Outcome = result.OutcomeWaiting
		return false, ui.WithExitCode(ui.WithHint(fmt.Errorf("it is not time for step 3 yet: waiting for %s",
			strings.Join(done.WaitsFor, "; and for ")),
			"run the same command again later; make kubeconfigs anew with \"pinniped kubeconfig rotate\" or "+
				"\"pinniped get kubeconfig\"; --continue goes on at once"), ui.ExitNotDue)
	}
	if o.Step == strconv.Itoa(rotation.StepWait) {
		done.Outcome = result.OutcomeUnchanged
		o.Session.Progress.Done("It is time for step 3")
		return false, nil
	}
	return true, nil
}

// chosen compares --step with the step that comes next. It returns true when the step of --step is done already.
func (o *Options) chosen(r *rotation.Record, done *Result) (already bool, err error) {
	if o.Step == "" || o.Step == stepNext {
		return false, nil
	}
	number, err := strconv.Atoi(o.Step)
	if err != nil {
		return false, fmt.Errorf("reading --step: %w", err)
	}
	next := r.Next()
	if number == rotation.StepWait && next == rotation.StepSwitch || number == next {
		return false, nil
	}
	if next == 0 || number < next {
		done.Outcome = result.OutcomeUnchanged
		o.Session.Progress.Done("Step %d is done already", number)
		return true, nil
	}
	return false, ui.WithExitCode(ui.WithHint(fmt.Errorf("step %d comes after step %d, which is not done", number,
		next),
		"%sleave out --step to do all that is due", plan.NothingChanged), ui.ExitRefused)
}

// sameRotation refuses to go on when another rotation is under way, when this one is being aborted, or when somebody
// else has changed the configuration.
func (o *Options) sameRotation(r *rotation.Record, issuer *configv1alpha1.CredentialIssuer) error {
	refused := func(hint, format string, args ...any) error {
		return ui.WithExitCode(ui.WithHint(fmt.Errorf(format, args...), "%s%s", plan.NothingChanged, hint),
			ui.ExitRefused)
	}
	const ways = `see "pinniped ip-tls rotate --status"; finish it, or take it back with --undo`
	if r.Active() {
		other := o.ToGenerated && r.To != nil || o.Secret != "" && (r.To == nil || r.To.SecretName != o.request.Secret)
		if other {
			return refused(ways, "another rotation is under way, to %s", r.Destination())
		}
		if o.request.BundleGiven && !certs.SameBundle(o.request.Bundle, []byte(r.NewCA)) {
			return refused(ways, "the rotation to %s was begun with another --ca-bundle: %s", r.Destination(),
				serving.Describe([]byte(r.NewCA)))
		}
		if r.Aborting {
			return refused("go on with --undo", "the rotation to %s is being aborted", r.Destination())
		}
	}
	return o.untouched(r, issuer)
}

// untouched refuses when the configuration is not what the last step of the rotation has written.
func (o *Options) untouched(r *rotation.Record, issuer *configv1alpha1.CredentialIssuer) error {
	if !r.Active() && (r.Current() != rotation.PhaseDone || !o.Abort) {
		return nil
	}
	fields := r.Edited(issuer.Spec.ImpersonationProxy)
	if len(fields) == 0 {
		return nil
	}
	what := strings.Join(fields, ", ")
	if managers := plan.ManagersOf(issuer, fields); len(managers) > 0 {
		what += fmt.Sprintf(" (managed by %s)", strings.Join(managers, ", "))
	}
	secret := "no tls block"
	if block := r.Block(r.Phase); block != nil {
		secret = fmt.Sprintf("Secret %q and the CA bundle %s", block.SecretName,
			plan.DescribeBundle(block.CertificateAuthorityData))
	}
	return ui.WithExitCode(ui.WithHint(
		fmt.Errorf("somebody else has changed CredentialIssuer %q during the rotation: %s; step %d has left %s",
			issuer.Name, what, r.LastStep(), secret),
		`%sput these fields back ("kubectl edit"), or give the rotation up with --forget, which leaves the `+
			`configuration as it is`, plan.NothingChanged), ui.ExitRefused)
}
