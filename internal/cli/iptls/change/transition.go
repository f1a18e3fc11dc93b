package change

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// transitionTo returns the agent's transition to the planned certificate, or nil.
func transitionTo(p *plan.Plan, issuer *configv1alpha1.CredentialIssuer) *configv1alpha1.TransitionStatus {
	t, tls := issuer.Status.Transition, p.Wanted.TLS
	if t == nil || tls == nil || tls.CATransition == configv1alpha1.CATransitionImmediate ||
		issuer.Status.ObservedGeneration < issuer.Generation || p.Generated != (t.SecretName == "") ||
		!p.Generated && t.SHA256 != p.Report.SHA256 {
		return nil
	}
	return t
}

// sayReplaced reports a transition that the change ends.
func (c *Change) sayReplaced(p *Proposal) {
	t := p.Snapshot.Issuer.Status.Transition
	if t == nil || transitionTo(p.Plan, p.Snapshot.Issuer) != nil {
		return
	}
	to := "the generated certificate"
	if t.SecretName != "" {
		to = fmt.Sprintf("the certificate in Secret %q", t.SecretName)
	}
	c.Session.Progress.Info("This replaces the transition to %s, which is %s", to, result.TransitionOf(t))
}

// mayBreak reports whether clients of the old certificate may break, including those added after the check.
func (p *Proposal) mayBreak() bool {
	return slices.Contains(p.Plan.Request.Allow, certs.OldClientsBreak)
}

// retire retires the revisions that the transition waits for if clients may break, or if the kubeconfigs of
// --kubeconfigs all verify the new certificate. It returns false if the agent continues to wait.
func (c *Change) retire(ctx context.Context, p *Proposal, issuer *configv1alpha1.CredentialIssuer, done *Result) (bool,
	error,
) {
	why := "--allow OldClientsBreak is set"
	if !p.mayBreak() {
		why = "no kubeconfig in --kubeconfigs has it"
		files, verify, err := c.kubeconfigsVerify(ctx, p, issuer)
		done.Kubeconfigs = files
		if err != nil || !verify {
			return false, err
		}
	}
	ids, err := c.Session.Retire(ctx, issuer, p.Plan.Request.Namespace, issuer.Status.Transition.WaitsFor)
	if len(ids) > 0 {
		c.Session.Progress.Done("Retired %s, because %s", named("revision", ids), why)
	}
	return len(ids) > 0, err
}

// prepared sets the result of a change whose certificate is not served yet.
func (c *Change) prepared(ctx context.Context, p *Proposal, seen observation, done *Result) error {
	done.Outcome, done.Transition = result.OutcomePrepared, result.TransitionOf(seen.transition)
	done.Endpoint, done.Addresses = seen.view.At.URL, seen.addresses
	published, _ := plan.Published(seen.issuer)
	done.CABundle = result.BundleOf(published)
	var who []string
	history, _, err := c.Session.History(ctx, p.Snapshot.Issuer, p.Plan.Request.Namespace)
	for _, id := range seen.transition.WaitsFor {
		if r := history.Find(id); err == nil && r != nil {
			client := serving.Client{Revision: r, Name: r.Host()}
			who = append(who, fmt.Sprintf("%s (revision %s)", client.Who(), id))
		} else {
			who = append(who, "clients of revision "+id)
		}
	}
	text := "the new certificate is not served yet: the agent waits for " + plan.OrNone(strings.Join(who, ", "))
	if until := done.Transition.Until; until != nil {
		text += fmt.Sprintf(", until %s at the latest", until.Format(time.RFC3339))
	}
	return ui.WithExitCode(
		ui.WithHint(errors.New(text), `give these clients the new CA ("pinniped kubeconfig rotate", or `+
			`"pinniped get kubeconfig"), and run the same command again; pass --kubeconfigs to show that they have it, `+
			`--activate-after to limit the wait, or --allow OldClientsBreak to end it`),
		ui.ExitNotDue,
	)
}

// settle completes a change with --allow OldClientsBreak: it retires the revisions whose clients break, and restores
// dual trust for later certificates. It also completes an earlier run that was killed.
func (c *Change) settle(ctx context.Context, p *Proposal, done *Result) {
	if !p.mayBreak() {
		return
	}
	gone, err := c.Session.Retire(ctx, p.Snapshot.Issuer, p.Plan.Request.Namespace, p.Plan.Lost)
	switch {
	case err != nil:
		c.Session.Progress.Warn("the revisions whose clients break could not be retired (%v), so they still count; retire "+
			"them: pinniped ip-tls history "+
			"--retire %s", err, strings.Join(p.Plan.Lost, ", "))
	case len(gone) > 0:
		c.Session.Progress.Done("Retired %s (--allow OldClientsBreak), so clients of the old certificate no longer "+
			"count", named("revision", gone))
	}
	if !p.Plan.AtOnce {
		return
	}
	settled := *p.Plan.Wanted.DeepCopy()
	settled.TLS.CATransition = configv1alpha1.CATransitionDualTrust
	switch err := c.replace(ctx, p, settled); {
	case err == nil:
		ofSecret := slices.DeleteFunc(done.Changes, func(f plan.FieldChange) bool { return !f.OfSecret() })
		done.Changes = append(ofSecret, plan.ChangesBetween(*p.Snapshot.Issuer.Spec.ImpersonationProxy, settled)...)
	case !errors.Is(err, errMeanwhile):
		c.Session.Progress.Warn("spec.impersonationProxy.tls.caTransition is still Immediate (%v), so the agent would "+
			"serve every later certificate from another CA at once; run the same command again without --allow", err)
	}
}
