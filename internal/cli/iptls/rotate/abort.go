package rotate

import (
	"context"
	"errors"
	"fmt"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// abort goes back to where the rotation began.
func (o *Options) abort(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation.Record,
	done *Result,
) error {
	switch r.Current() {
	case rotation.PhaseNone:
		return ui.WithHint(errors.New("there is no rotation to abort"),
			`take back another change with "pinniped ip-tls undo"`)
	case rotation.PhaseAborted:
		done.Outcome = result.OutcomeUnchanged
		o.Session.Progress.Done("The rotation to %s is aborted already", r.Destination())
		return nil
	case rotation.PhaseAdvertised, rotation.PhaseSwitched, rotation.PhaseDone:
	}
	if err := o.untouched(r, issuer); err != nil {
		return err
	}
	for r.Phase != rotation.PhaseAborted {
		s := &step{options: o, from: r, to: rotation.PhaseAborted}
		what := "Going back to the old CA"
		switch {
		case r.Phase == rotation.PhaseSwitched && r.From != nil:
			s.to, s.aborting = rotation.PhaseAdvertised, true
			what = "Going back to the old certificate, with both CAs"
		case r.Phase == rotation.PhaseDone:
			what = "Going back to the old certificate, although the rotation is done"
		case r.Phase == rotation.PhaseSwitched:
			what = "Going back to the agent's own certificate, which it makes anew of its old CA"
		}
		o.Session.Progress.Info("%s", what)
		next, one, err := o.do(ctx, s)
		if one != nil {
			done.Changes = append(done.Changes, one)
		}
		if err != nil && r.Phase == rotation.PhaseDone && ui.ExitCodeOf(err) == ui.ExitRefused {
			err = ui.WithExitCode(ui.WithHint(fmt.Errorf("the rotation to %s is done: %w", r.Destination(), err),
				"%srotate in the other direction: pinniped ip-tls rotate --secret %s", plan.NothingChanged, r.OldSecret),
				ui.ExitRefused)
		}
		if err != nil {
			done.recordFailure(err, one)
			return err
		}
		if o.Flags.DryRun == session.DryRunNone {
			done.show(next)
		}
		done.Outcome = result.OutcomeAborted
		if o.Flags.DryRun != session.DryRunNone {
			return nil
		}
		r = next
	}
	return nil
}

// forget drops the record, even one that cannot be read.
func (o *Options) forget(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, done *Result) error {
	if issuer.Annotations[plan.RotationAnnotation] == "" {
		done.Outcome = result.OutcomeUnchanged
		o.Session.Progress.Done("There is no rotation to give up")
		return nil
	}
	for attempt := 1; ; attempt++ {
		patch, err := plan.MergePatch(issuer, plan.TargetOf(issuer.Spec.ImpersonationProxy),
			map[string]any{plan.RotationAnnotation: nil})
		if err != nil {
			return err
		}
		if o.Flags.DryRun != session.DryRunClient {
			_, err = o.Session.Cluster.MergeCredentialIssuer(ctx, issuer.Name, patch,
				discovery.ApplyOptions{FieldManager: plan.FieldManager, DryRun: o.Flags.DryRun == session.DryRunServer})
		}
		switch {
		case err == nil:
			done.Outcome = result.OutcomeForgotten
			return nil
		case !errors.Is(err, discovery.ErrConflict) || attempt == change.Attempts:
			return session.WithCodes(fmt.Errorf("giving up the rotation: %w", err))
		}
		if issuer, err = o.Session.ReadIssuer(ctx); err != nil {
			return err
		}
	}
}
