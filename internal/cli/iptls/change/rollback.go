package change

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// notConverged reports the last observation, and restores the previous configuration. final means that the agent
// refuses the new one permanently.
func (c *Change) notConverged(ctx context.Context, p *Proposal, applied *configv1alpha1.CredentialIssuer,
	done *Result, seen observation, final bool,
) error {
	if final {
		c.Session.Progress.Fail("The agent rejects the new configuration")
	} else {
		c.Session.Progress.Fail("The endpoint did not present the certificate within %s", c.Session.Timeout)
	}
	done.Outcome = result.OutcomeNotConverged
	done.Endpoint, done.Addresses, done.Problems = seen.view.At.URL, seen.addresses, seen.problems
	cause := "no response"
	for i, problem := range seen.problems {
		if i == 0 {
			cause = problem // part of the error
			continue
		}
		c.Session.Progress.Fail("%s", problem)
	}
	failed := fmt.Errorf("the change did not take effect within %s: %s", c.Session.Timeout, cause)
	fix := "fix the cause, or raise --timeout"
	if final {
		failed = fmt.Errorf("the change does not take effect: %s", cause)
		fix = fmt.Sprintf("run %q for more", "pinniped explain "+seen.view.Refused.Code)
	}
	hint := ""
	switch {
	case applied == nil:
		hint = "nothing was changed: the CredentialIssuer already had this configuration"
	case c.Flags.NoRollback:
		hint = "the new configuration stays because of --no-rollback"
	default:
		if err := c.rollBack(ctx, p); err != nil {
			failed = fmt.Errorf("%w; %w", failed, err)
			hint = "check the CredentialIssuer: kubectl get " + discovery.KubectlName(p.Snapshot.Issuer) + " -o yaml"
		} else {
			done.RolledBack = true
			hint = "the previous configuration was restored; " + fix
		}
	}
	if seen.hint != "" {
		hint += "; about the address: " + seen.hint
	}
	return ui.WithExitCode(ui.WithHint(failed, "%s", hint), ui.ExitNotConverged)
}

// rollBack restores the previous configuration, unless it has been changed again.
func (c *Change) rollBack(ctx context.Context, p *Proposal) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	switch err := c.replace(ctx, p, *p.Snapshot.Issuer.Spec.ImpersonationProxy); {
	case errors.Is(err, errMeanwhile):
		return err
	case err != nil:
		return fmt.Errorf("restoring the previous configuration: %w", err)
	}
	c.Session.Progress.Done("Restored the previous configuration")
	if p.PutBack != nil {
		return p.PutBack(ctx)
	}
	return nil
}

var errMeanwhile = errors.New("the configuration was changed in the meantime, so it stays as it is")

// replace replaces the planned configuration by another one. It returns errMeanwhile if the planned one has been
// changed.
func (c *Change) replace(ctx context.Context, p *Proposal, with configv1alpha1.ImpersonationProxySpec) error {
	for attempt := 1; ; attempt++ {
		current, err := c.Session.Cluster.CredentialIssuer(ctx, p.Snapshot.Issuer.Name)
		if err != nil {
			return err
		}
		if spec := current.Spec.ImpersonationProxy; spec == nil || len(plan.ChangesBetween(*spec, p.Plan.Wanted)) > 0 {
			return errMeanwhile
		}
		patch, err := plan.MergePatch(current, with)
		if err != nil {
			return err
		}
		_, err = c.Session.Cluster.MergeCredentialIssuer(ctx, current.Name, patch,
			discovery.ApplyOptions{FieldManager: plan.FieldManager})
		if !errors.Is(err, discovery.ErrConflict) || attempt == Attempts {
			return err
		}
	}
}

// rollbackTimeout limits the rollback, as the command's own timeout has passed.
const rollbackTimeout = 20 * time.Second
