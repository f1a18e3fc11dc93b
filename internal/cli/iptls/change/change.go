// Package change implements the commands that change the CredentialIssuer: `pinniped ip-tls set`, `unset` and `undo`.
//
// Each command describes its Change (set.go, undo.go); run carries it out. wait.go waits until the endpoint presents
// the certificate or the agent has prepared a transition (transition.go); else it restores the previous configuration.
package change

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Change is a change of the CredentialIssuer by one of the commands.
type Change struct {
	Session *session.Session
	Flags   Flags
	// Evaluate reads the cluster, decides, and prints the findings. With an error, which refuses, it may return both.
	Evaluate func(ctx context.Context, first bool) (*Proposal, error)
	// Apply makes the change, or returns ErrConflict if the objects have changed since. Default: merge.
	Apply func(ctx context.Context, p *Proposal) (*configv1alpha1.CredentialIssuer, error)
}

// Proposal is a change that a verb would make, with the state of the cluster.
type Proposal struct {
	Snapshot *plan.Snapshot
	Plan     *plan.Plan
	Outcome  result.Outcome // for the result, if anything changes
	// PutBack undoes changes of other objects than the CredentialIssuer; nil if there are none.
	PutBack func(context.Context) error
	applied *configv1alpha1.CredentialIssuer // nil if nothing had to change
}

// merge applies a proposal by a merge patch, regardless of field managers.
func (c *Change) merge(ctx context.Context, p *Proposal) (*configv1alpha1.CredentialIssuer, error) {
	patch, err := plan.MergePatch(p.Snapshot.Issuer, p.Plan.Wanted)
	if err != nil {
		return nil, err
	}
	return c.Session.Cluster.MergeCredentialIssuer(ctx, p.Snapshot.Issuer.Name, patch,
		discovery.ApplyOptions{FieldManager: plan.FieldManager, DryRun: c.Flags.DryRun == session.DryRunServer})
}

// Attempts limits how often a change is evaluated because the CredentialIssuer has changed.
const Attempts = 5

// run checks, applies, waits and prints.
func (c *Change) run(ctx context.Context, req *plan.Request) error {
	ctx, cancel := factory.WithTimeout(ctx, c.Session.Timeout)
	defer cancel()
	if err := c.Session.Locate(ctx, req); err != nil {
		return err
	}
	p, err := c.applyChecked(ctx)
	if p == nil {
		return err
	}
	done := c.newResult(p)
	if err != nil {
		done.Outcome = result.OutcomeRefused
		return c.print(done, err)
	}
	if c.Flags.DryRun == session.DryRunNone && c.Flags.Wait {
		if err := c.waitAndReport(ctx, p, done); err != nil {
			if done.Outcome != result.OutcomeNotConverged && done.Outcome != result.OutcomePrepared {
				return err
			}
			return c.print(done, err)
		}
	}
	if tls := p.Plan.Wanted.TLS; !c.Flags.Wait && p.applied != nil && tls != nil &&
		tls.CATransition == configv1alpha1.CATransitionImmediate {
		c.Session.Progress.Warn("spec.impersonationProxy.tls.caTransition is now Immediate, so the agent would serve " +
			"every later certificate from another CA at once; to prevent that, run the same command again without " +
			"--allow when this certificate is served")
	}
	return c.print(done, c.switchedOff(p, done))
}

// switchedOff returns an error if no client can connect because the proxy is off.
func (c *Change) switchedOff(p *Proposal, done *Result) error {
	mode := p.Plan.Wanted.Mode
	if mode != configv1alpha1.ImpersonationProxyModeDisabled && !done.SwitchedOff {
		return nil
	}
	done.SwitchedOff = true
	cause := fmt.Sprintf("mode is %q", mode)
	if mode == configv1alpha1.ImpersonationProxyModeAuto {
		cause = `mode "auto" disables it in this cluster, because control-plane nodes are visible`
	}
	err := fmt.Errorf("the impersonation proxy of CredentialIssuer %q is off, so no client can connect: %s",
		p.Snapshot.Issuer.Name, cause)
	return ui.WithExitCode(ui.WithHint(err, "enable it: pinniped ip-tls set --mode enabled"), ui.ExitSwitchedOff)
}

// applyChecked evaluates and applies the change. If the CredentialIssuer has changed in between, it starts over, so
// that the applied change was checked against the current state.
func (c *Change) applyChecked(ctx context.Context) (*Proposal, error) {
	apply := c.Apply
	if apply == nil {
		apply = c.merge
	}
	var before *Proposal
	for attempt := 1; ; attempt++ {
		p, err := c.Evaluate(ctx, attempt == 1)
		if err == nil && before != nil {
			err = overwrites(before, p.Snapshot.Issuer)
		}
		if err == nil {
			err = plan.Refusal(p.Plan.Report, plan.NothingChanged)
		}
		if err == nil && before == nil {
			err = c.agentRuns(ctx, p)
		}
		if err != nil {
			return p, err
		}
		issuer := p.Snapshot.Issuer
		if len(p.Plan.Changes) == 0 {
			c.Session.Progress.Done("CredentialIssuer %q already has this configuration", issuer.Name)
			return p, nil
		}
		if before == nil {
			c.sayReplaced(p)
		}
		before = p
		if c.Flags.DryRun == session.DryRunClient {
			return p, nil
		}
		p.applied, err = apply(ctx, p)
		switch {
		case err == nil:
			if c.Flags.DryRun == session.DryRunNone &&
				len(plan.ChangesBetween(*issuer.Spec.ImpersonationProxy, p.Plan.Wanted)) > 0 {
				c.Session.Progress.Done("Changed CredentialIssuer %q", issuer.Name)
			}
			return p, nil
		case errors.Is(err, discovery.ErrConflict) && attempt < Attempts:
			c.Session.Progress.Info("%s has changed in the meantime: checking again", culprit(err, issuer))
		default:
			return nil, session.WithCodes(fmt.Errorf("changing %s: %w", culprit(err, issuer), err))
		}
	}
}

// agentRuns refuses a change if the command would wait in vain, because no replica of the agent runs.
func (c *Change) agentRuns(ctx context.Context, p *Proposal) error {
	if c.Flags.DryRun != session.DryRunNone || !c.Flags.Wait {
		return nil
	}
	namespace := p.Plan.Request.Namespace
	life, err := c.Session.Life(ctx, namespace, p.Snapshot.Issuer)
	if err != nil || life.Running != result.AnswerNo {
		return nil // if unknown, the wait will show it
	}
	hint := "find out why: kubectl get pods --namespace=" + namespace +
		"; with --wait=false, the command makes the change anyway, to be applied when the agent runs again"
	err = fmt.Errorf("the agent is not running: %s; nothing was changed", life.Gone())
	return ui.WithExitCode(ui.WithHint(err, "%s", hint), ui.ExitRefused)
}

// secretError is an error in writing a Secret.
type secretError struct {
	name string
	error
}

func (e *secretError) Unwrap() error { return e.error }

// culprit returns the object that could not be changed.
func culprit(err error, issuer *configv1alpha1.CredentialIssuer) string {
	if of, ok := errors.AsType[*secretError](err); ok {
		return fmt.Sprintf("Secret %q", of.name)
	}
	return fmt.Sprintf("CredentialIssuer %q", issuer.Name)
}

// overwrites returns an error if fields of this change were changed by others since before was read.
func overwrites(before *Proposal, now *configv1alpha1.CredentialIssuer) error {
	var theirs []string
	for _, change := range plan.ChangesBetween(*before.Snapshot.Issuer.Spec.ImpersonationProxy,
		*now.Spec.ImpersonationProxy) {
		if slices.ContainsFunc(before.Plan.Changes, func(f plan.FieldChange) bool { return f.Field == change.Field }) {
			theirs = append(theirs, fmt.Sprintf("%s from %s to %s", change.Field, plan.OrNone(change.From),
				plan.OrNone(change.To)))
		}
	}
	if len(theirs) == 0 {
		return nil
	}
	return ui.WithExitCode(ui.WithHint(
		fmt.Errorf("CredentialIssuer %q was changed in the meantime: %s", now.Name, strings.Join(theirs, ", ")),
		"%srun the same command again to overwrite that change", plan.NothingChanged), ui.ExitRefused)
}

// Flags are the common flags of the commands that change the CredentialIssuer.
type Flags struct {
	DryRun     string
	Diff       bool
	Wait       bool
	NoRollback bool
	// Kubeconfigs are files and directories with all existing kubeconfigs.
	Kubeconfigs []string
}

// AddFlags adds the flags and those of the session to a command.
func (c *Flags) AddFlags(cmd *cobra.Command, f *factory.Factory, s *session.Session) {
	flags := cmd.Flags()
	flags.StringVar(&c.DryRun, "dry-run", session.DryRunNone,
		`change nothing: with "client", only check the change; with "server", also have the API server validate it`)
	flags.Lookup("dry-run").NoOptDefVal = session.DryRunClient
	flags.BoolVar(&c.Diff, "diff", false, "show the old and new values of the fields that change")
	flags.BoolVar(&c.Wait, "wait", true, "wait until the endpoint presents the certificate")
	flags.BoolVar(&c.NoRollback, "no-rollback", false, "keep the new configuration even if it does not take "+
		"effect in time")
	flags.StringArrayVar(&c.Kubeconfigs, "kubeconfigs", nil, "serve the new certificate once every kubeconfig in this "+
		"file or directory verifies it; pass all kubeconfigs in use (repeatable)")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"dry-run": factory.CompleteValues(session.DryRunNone, session.DryRunClient, session.DryRunServer),
	})
	s.AddFlags(cmd, f, 2*time.Minute, factory.Formats()...)
}

// Validate checks the flags and those of the session.
func (c *Flags) Validate(s *session.Session) error {
	var unreadable error
	for _, path := range c.Kubeconfigs { // before any change
		if _, err := os.Stat(path); err != nil {
			unreadable = cmp.Or(unreadable, ui.Usage(fmt.Errorf("reading --kubeconfigs: %w", err)))
		}
	}
	return cmp.Or(s.Validate(factory.Formats()...), unreadable,
		factory.CheckOneOf("dry-run", c.DryRun, session.DryRunNone, session.DryRunClient, session.DryRunServer))
}
