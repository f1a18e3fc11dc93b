package change

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// observation is one observation of cluster and endpoint.
type observation struct {
	view      plan.AgentView
	addresses []result.Address
	skipped   []string
	hint      string   // for the certificate at an address
	problems  []string // why the configuration is not in effect; empty if it is
	// transition, if set, is the transition to the new certificate: the old one is served with dual trust.
	transition *configv1alpha1.TransitionStatus
	issuer     *configv1alpha1.CredentialIssuer
}

// waitAndReport waits until the configuration is in effect, else restores the previous one. It sets the result.
func (c *Change) waitAndReport(ctx context.Context, p *Proposal, done *Result) error {
	task := c.Session.Progress.Start("Waiting for the impersonation proxy to present the certificate")
	started := c.Session.Now()
	seen, err := c.await(ctx, p, task, done)
	// Set after the wait, during which the Secret may have been renewed.
	done.Certificate, done.CABundle = p.Plan.Report, expectedBundle(p.Plan)
	done.Endpoint, done.Addresses = seen.view.At.URL, seen.addresses
	if err != nil || seen.view.Disabled && seen.transition == nil {
		task.Stop()
	}
	switch {
	case errors.Is(err, context.Canceled):
		c.Session.Progress.Warn("interrupted: %s", interruptedHint(p))
		return fmt.Errorf("waiting for the impersonation proxy to present the certificate: %w", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errFinal):
		return c.notConverged(ctx, p, done, seen, errors.Is(err, errFinal))
	case err != nil:
		return err
	case seen.transition != nil:
		task.Done("%s presents the old certificate, and both trust bundles are published", seen.view.At.URL)
		return c.prepared(ctx, p, seen, done)
	case seen.view.Disabled:
		c.Session.Progress.Warn("the impersonation proxy is disabled, so there is nothing to wait for: %s", seen.view.Problem)
		done.SwitchedOff = true
	default:
		task.Done("%s presents the certificate at %d of %d addresses after %s", seen.view.At.URL, len(seen.addresses),
			len(seen.addresses)+len(seen.skipped), c.Session.Now().Sub(started).Round(100*time.Millisecond))
	}
	for _, address := range seen.skipped {
		c.Session.Progress.Warn("%s was not checked: there is no route to it from here", address)
	}
	for _, finding := range seen.view.Findings {
		say := c.Session.Progress.Warn
		if finding.Severity == configv1alpha1.FindingInfo {
			say = c.Session.Progress.Info
		}
		say("the agent reports: %s: %s", finding.Code, finding.Message)
	}
	if seen.view.Message != "" {
		c.Session.Progress.Info("the agent reports: %s", seen.view.Message)
	}
	if !seen.view.Disabled {
		c.settle(ctx, p, done)
	}
	return nil
}

func interruptedHint(p *Proposal) string {
	all := p.Plan.Changes
	others := slices.DeleteFunc(slices.Clone(all), plan.FieldChange.OfSecret)
	changed := "the CredentialIssuer has changed"
	switch {
	case p.applied == nil:
		return "nothing was changed"
	case len(others) == 0 && len(all) > 0:
		changed = fmt.Sprintf("Secret %q has changed", p.Plan.Request.Secret)
	case len(others) < len(all):
		changed = fmt.Sprintf("Secret %q and the CredentialIssuer have changed", p.Plan.Request.Secret)
	}
	return changed + `; run the command again to see whether the change has taken effect, or revert it with ` +
		`"pinniped ip-tls undo"`
}

// errFinal means that the agent permanently refuses the configuration, so that waiting is useless.
var errFinal = errors.New("the agent refuses it")

// finalPolls is the number of polls for which the agent must refuse the configuration before that counts as permanent.
// It may have observed the new configuration before the new content of the Secret.
const finalPolls = 10

// await polls until the configuration is in effect, prepared or refused for good. It returns the last observation.
func (c *Change) await(ctx context.Context, p *Proposal, task *ui.Task, done *Result) (observation, error) {
	var last observation
	retired := false
	for refusals := 0; ; {
		seen, err := c.observe(ctx, p)
		if err != nil {
			return last, err
		}
		if err := factory.Over(ctx); err != nil {
			// An observation that ran out of time is incomplete, so keep the one before.
			if last.issuer == nil {
				last = seen
			}
			if last.transition != nil {
				err = nil
			}
			return last, err
		}
		last = seen
		switch {
		case len(seen.problems) > 0 && !seen.view.Disabled:
		case seen.transition == nil, len(c.Flags.Kubeconfigs) == 0 && !p.mayBreak():
			return seen, nil
		default:
			if !retired {
				if retired, err = c.retire(ctx, p, seen, done); err != nil || !retired {
					return seen, err
				}
			}
			seen.problems = []string{"the agent is about to serve the new certificate"}
		}
		if refusals++; seen.view.Refused == nil {
			refusals = 0
		}
		if refusals == finalPolls {
			return seen, errFinal
		}
		if err := c.followSecret(ctx, p); err != nil {
			return last, err
		}
		task.Update("Waiting: %s", seen.problems[0])
		if err := pause(ctx, c.Session.Poll); err != nil {
			return last, err
		}
	}
}

// pause waits, or returns the error of ctx if that ends before.
func pause(ctx context.Context, lasts time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(lasts):
		return nil
	}
}

// followSecret detects a change of the Secret during the wait, as by a renewal, and checks the new certificate.
func (c *Change) followSecret(ctx context.Context, p *Proposal) error {
	if p.Snapshot.Secret == nil {
		return nil // the certificate is generated
	}
	name := p.Plan.Request.SecretName()
	secret, err := c.Session.Cluster.Secret(ctx, name.Namespace, name.Name)
	if err != nil || secret.ResourceVersion == p.Snapshot.Secret.ResourceVersion {
		return nil // observe reports errors
	}
	p.Snapshot.Secret = secret
	c.Session.Stamp(p.Snapshot)
	again := plan.Evaluate(p.Plan.Request, p.Snapshot, p.Plan.Wanted)
	if again.Report.SHA256 == p.Plan.Report.SHA256 && certs.SameBundle(again.Bundle, p.Plan.Bundle) {
		return nil
	}
	c.Session.Progress.Info("Secret %q has changed in the meantime: checking it again", p.Plan.Request.Secret)
	Say(c.Session.Progress, p.Snapshot, again)
	if err := plan.Refusal(again.Report, "the CredentialIssuer is left as it is now; "); err != nil {
		return err
	}
	p.Plan.Report, p.Plan.Bundle = again.Report, again.Bundle
	p.Plan.Next, p.Plan.Lost = again.Next, again.Lost
	return nil
}

// observe reads the status and probes the endpoint once. An error is permanent.
func (c *Change) observe(ctx context.Context, proposal *Proposal) (observation, error) {
	issuerName, p := proposal.Snapshot.Issuer.Name, proposal.Plan
	issuer, err := c.Session.Cluster.CredentialIssuer(ctx, issuerName)
	switch {
	case errors.Is(err, discovery.ErrForbidden), errors.Is(err, discovery.ErrUnauthorized):
		return observation{}, session.WithCodes(fmt.Errorf("reading the status: %w", err))
	case err != nil:
		return observation{problems: []string{err.Error()}}, nil
	}
	if spec := issuer.Spec.ImpersonationProxy; spec == nil || len(plan.ChangesBetween(*spec, p.Wanted)) > 0 {
		return observation{}, ui.WithHint(fmt.Errorf("CredentialIssuer %q was changed by another client while waiting",
			issuerName), "see who it was: kubectl get %s -o yaml --show-managed-fields", discovery.KubectlName(issuer))
	}
	bundle := p.Expected(issuer)
	seen, sha256 := observation{issuer: issuer, transition: transitionTo(p, issuer)}, p.Report.SHA256
	if seen.transition != nil {
		published, _ := plan.Published(issuer)
		if len(bundle) == 0 || certs.SameBundle(certs.UnionBundle(published, bundle), published) {
			bundle = published
		}
		sha256 = ""
		if inService := issuer.Status.ServingCertificate; inService != nil {
			sha256 = inService.SHA256
		}
	}
	seen.view = plan.ReadStatus(issuer, p.Wanted, bundle)
	if seen.view.Disabled && p.Wanted.Mode == configv1alpha1.ImpersonationProxyModeEnabled {
		// The status is older than the mode. With mode auto, there is no way to know.
		seen.view.Disabled = false
		seen.view.Problem = "the agent still reports that the proxy is switched off: " + seen.view.Problem
	}
	if p.Generated && len(bundle) == 0 && seen.view.Problem == "" {
		seen.view.Problem = "the agent does not publish its own CA yet"
	}
	if seen.view.Problem != "" {
		seen.problems = append(seen.problems, seen.view.Problem)
	}
	if seen.view.At.Host == "" || p.Generated && len(bundle) == 0 {
		return seen, nil
	}
	c.askEndpoint(ctx, p, sha256, bundle, &seen)
	if serving := issuer.Status.ServingCertificate; serving != nil {
		if problem := plan.ReplicaProblem(serving, sha256); problem != "" {
			seen.problems = append(seen.problems, problem)
		}
	}
	if len(seen.problems) == 0 && seen.transition == nil {
		p.Bundle = bundle
	}
	return seen, nil
}

// askEndpoint compares the certificate at every address with the expected one.
func (c *Change) askEndpoint(ctx context.Context, p *plan.Plan, sha256 string, bundle []byte, seen *observation) {
	served, skipped, err := session.Probe(ctx, c.Session.Network, seen.view.At)
	if err != nil {
		seen.problems = append(seen.problems, fmt.Sprintf("resolving %q: %s", seen.view.At.Host, err))
		return
	}
	seen.skipped = skipped
	want := certs.Expected{SHA256: sha256, Host: seen.view.At.Host, Bundle: bundle, Now: c.Session.Now()}
	for _, one := range served {
		address := result.Address{Address: one.Address}
		if len(one.Chain) > 0 {
			address.SHA256, address.NotAfter = certs.Fingerprint(one.Chain[0].Raw), new(one.Chain[0].NotAfter.UTC())
		}
		if problems := withoutAllowed(certs.CheckServed(want, []certs.Served{one}), p.Report); len(problems) > 0 {
			address.Problem = problems[0].Message
			seen.problems = append(seen.problems, problems[0].Message)
			seen.hint = problems[0].Hint
		}
		seen.addresses = append(seen.addresses, address)
	}
	switch {
	case len(served) > 0:
	case len(skipped) > 0:
		seen.problems = append(seen.problems, fmt.Sprintf("there is no route from here to %q", seen.view.At.Host))
	default:
		seen.problems = append(seen.problems, fmt.Sprintf("%q resolves to no address", seen.view.At.Host))
	}
}

// withoutAllowed removes findings that follow from an allowed error: the right certificate is presented, but clients
// cannot verify it. OldClientsBreak does not count: clients with the new CA bundle must verify the certificate.
func withoutAllowed(problems []certs.Finding, report certs.Report) []certs.Finding {
	if !slices.ContainsFunc(report.Findings, func(f certs.Finding) bool {
		return f.Allowed && f.Code != certs.OldClientsBreak
	}) {
		return problems
	}
	return slices.DeleteFunc(problems, func(f certs.Finding) bool { return f.Presented })
}

// notConverged reports seen, and restores the previous configuration. final: the agent refuses the new one for good.
func (c *Change) notConverged(ctx context.Context, p *Proposal, done *Result, seen observation, final bool) error {
	done.Outcome, done.Problems = result.OutcomeNotConverged, seen.problems
	what, cause := fmt.Sprintf("The endpoint did not present the certificate within %s", c.Session.Timeout), "no response"
	if final {
		what = "The agent rejects the new configuration"
	}
	c.Session.Progress.Fail("%s", what)
	for i, problem := range seen.problems {
		if i == 0 {
			cause = problem // it is part of the error
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
	case p.applied == nil:
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
		hint += "; for the address that failed: " + seen.hint
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

// replace replaces the planned configuration by another one, or returns errMeanwhile if it has been changed.
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
