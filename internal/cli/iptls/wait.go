package iptls

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// rollbackTimeout bounds putting the previous configuration back; by then the command's own time is over.
const rollbackTimeout = 20 * time.Second

// observation is what one look at cluster and endpoint showed.
type observation struct {
	view      agentView
	addresses []Address
	skipped   []string
	hint      string   // what to do about what an address presents
	problems  []string // why it is not as it should be; empty when it is
}

// waitAndReport waits until the configuration is in effect, and fills the result with what was seen. When that does not
// happen in time, it puts the previous configuration back.
func (o *Changing) waitAndReport(ctx context.Context, st *state, p *plan, applied *configv1alpha1.CredentialIssuer, result *Result) error {
	task := o.progress.Start("Waiting for the impersonation proxy to present the certificate")
	started := o.Now()
	seen, err := o.await(ctx, st, p, task)
	result.Certificate, result.CABundle = p.report, describeAdvertised(p) // of a Secret that was renewed meanwhile
	if err == nil {
		switch {
		case seen.view.disabled:
			task.Done("The impersonation proxy is switched off, so there is nothing to wait for: %s", seen.view.problem)
		default:
			task.Done("%s presents the certificate at %d of %d addresses after %s", seen.view.at.url, len(seen.addresses), len(seen.addresses)+len(seen.skipped),
				o.Now().Sub(started).Round(100*time.Millisecond))
		}
		for _, address := range seen.skipped {
			o.progress.Warn("%s was not looked at: there is no route to it from here", address)
		}
		if seen.view.message != "" {
			o.progress.Warn("the agent reports: %s", seen.view.message)
		}
		result.Endpoint, result.Addresses = seen.view.at.url, seen.addresses
		return nil
	}
	task.Stop()
	if errors.Is(err, context.Canceled) {
		o.progress.Warn("interrupted: %s", interruptedHint(p, applied))
		return fmt.Errorf("waiting for the impersonation proxy to present the certificate: %w", err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return o.notConverged(ctx, st, p, applied, result, seen)
}

func interruptedHint(p *plan, applied *configv1alpha1.CredentialIssuer) string {
	if applied == nil {
		return "nothing was changed"
	}
	changed := "the CredentialIssuer is changed"
	if others := slices.DeleteFunc(slices.Clone(p.changes), Change.ofSecret); len(others) == 0 && len(p.changes) > 0 {
		changed = fmt.Sprintf("Secret %q is changed", p.req.secret)
	} else if len(others) < len(p.changes) {
		changed = fmt.Sprintf("Secret %q and the CredentialIssuer are changed", p.req.secret)
	}
	return changed + "; run the command again to see whether the change has taken effect"
}

// await looks until everything is as it should be, or ctx is over; then it returns the last look.
func (o *Changing) await(ctx context.Context, st *state, p *plan, task *ui.Task) (observation, error) {
	var last observation
	for {
		seen, err := o.observe(ctx, st.issuer.Name, p)
		if err != nil {
			return last, err
		}
		if err := factory.Over(ctx); err != nil {
			// What a look at the end of its time shows is mostly that its time was over.
			if last.problems == nil {
				last = seen
			}
			return last, err
		}
		if last = seen; len(seen.problems) == 0 || seen.view.disabled {
			return seen, nil
		}
		if err := o.followSecret(ctx, st, p); err != nil {
			return last, err
		}
		task.Update("Waiting: %s", seen.problems[0])
		timer := time.NewTimer(o.Poll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return last, ctx.Err()
		case <-timer.C:
		}
	}
}

// followSecret notices a Secret that changes while it is waited for, as renewals do, and checks what is in it now.
func (o *Changing) followSecret(ctx context.Context, st *state, p *plan) error {
	if st.secret == nil {
		return nil // nothing is waited for but what the agent makes itself
	}
	name := p.req.secretName()
	secret, err := o.cluster.Secret(ctx, name.Namespace, name.Name)
	if err != nil || secret.ResourceVersion == st.secret.ResourceVersion {
		return nil // the next look tells what is wrong
	}
	st.secret, st.now = secret, o.Now()
	again := decideTarget(p.req, &state{issuer: st.issuer, secret: secret, service: st.service, now: st.now, serverTime: o.serverTime(st.now)}, p.wanted, nil)
	if again.report.SHA256 == p.report.SHA256 && certs.SameBundle(again.bundle, p.bundle) {
		return nil
	}
	o.progress.Info("Secret %q has changed meanwhile: checking it again", p.req.secret)
	o.say(st, again)
	if err := refusal(again.report, "the CredentialIssuer is left as it is now; "); err != nil {
		return err
	}
	p.report, p.bundle = again.report, again.bundle
	return nil
}

// observe looks once. An error means that looking again is no use.
func (o *Changing) observe(ctx context.Context, issuerName string, p *plan) (observation, error) {
	issuer, err := o.cluster.CredentialIssuer(ctx, issuerName)
	switch {
	case errors.Is(err, discovery.ErrForbidden), errors.Is(err, discovery.ErrUnauthorized):
		return observation{}, withCodes(fmt.Errorf("reading the status: %w", err))
	case err != nil:
		return observation{problems: []string{err.Error()}}, nil
	}
	if spec := issuer.Spec.ImpersonationProxy; spec == nil || len(changesBetween(*spec, p.wanted)) > 0 {
		return observation{}, ui.WithHint(fmt.Errorf("CredentialIssuer %q was changed by somebody else while waiting", issuerName),
			"see who it was: kubectl get credentialissuer %s -o yaml --show-managed-fields", issuerName)
	}
	bundle := p.expected(issuer)
	seen := observation{view: readStatus(issuer, p.wanted, bundle)}
	if p.generated && len(bundle) == 0 && seen.view.problem == "" {
		seen.view.problem = "the agent does not advertise its own CA yet"
	}
	if seen.view.problem != "" {
		seen.problems = append(seen.problems, seen.view.problem)
	}
	if seen.view.at.host == "" || p.generated && len(bundle) == 0 {
		return seen, nil
	}
	o.askEndpoint(ctx, p, bundle, &seen)
	if serving := issuer.Status.ServingCertificate; serving != nil {
		if problem := replicaProblem(serving, p.report.SHA256); problem != "" {
			seen.problems = append(seen.problems, problem)
		}
	}
	if len(seen.problems) == 0 {
		p.bundle = bundle
	}
	return seen, nil
}

// replicaProblem says why not every replica serves the certificate, as the agent reports it; empty when each does. Without
// a fingerprint, any certificate will do that is the same everywhere.
func replicaProblem(serving *configv1alpha1.ServingCertificateStatus, sha256 string) string {
	switch {
	case sha256 != "" && serving.SHA256 != sha256:
		return fmt.Sprintf("the agent still serves another certificate, SHA-256 %.16s", serving.SHA256)
	case serving.ServingReplicas >= serving.Replicas:
		return ""
	}
	problem := fmt.Sprintf("%d of %d replicas of the agent serve the certificate", serving.ServingReplicas, serving.Replicas)
	if len(serving.OtherReplicas) > 0 {
		problem += fmt.Sprintf("; %s does not: %s", serving.OtherReplicas[0].Name, serving.OtherReplicas[0].Message)
	}
	return problem
}

// askEndpoint compares what every address presents with what it should.
func (o *Changing) askEndpoint(ctx context.Context, p *plan, bundle []byte, seen *observation) {
	served, skipped, err := look(ctx, o.Network, seen.view.at)
	if err != nil {
		seen.problems = append(seen.problems, fmt.Sprintf("resolving %q: %s", seen.view.at.host, err))
		return
	}
	seen.skipped = skipped
	want := certs.Expected{SHA256: p.report.SHA256, Host: seen.view.at.host, Bundle: bundle, Now: o.Now()}
	for _, one := range served {
		address := Address{Address: one.Address}
		if len(one.Chain) > 0 {
			address.SHA256 = certs.Fingerprint(one.Chain[0].Raw)
		}
		problems := certs.CheckServed(want, []certs.Served{one})
		problems = withoutAllowed(problems, p.report)
		if len(problems) > 0 {
			address.Problem = problems[0].Message
			seen.problems = append(seen.problems, problems[0].Message)
			seen.hint = problems[0].Hint
		}
		seen.addresses = append(seen.addresses, address)
	}
	if len(served) == 0 {
		seen.problems = append(seen.problems, fmt.Sprintf("%q resolves to no address", seen.view.at.host))
	}
}

// withoutAllowed drops what an allowed error necessarily brings about: the right certificate is presented, but clients
// cannot verify it.
func withoutAllowed(problems []certs.Finding, report certs.Report) []certs.Finding {
	allowed := false
	for _, finding := range report.Findings {
		allowed = allowed || finding.Allowed
	}
	if !allowed {
		return problems
	}
	var kept []certs.Finding
	for _, problem := range problems {
		if !strings.Contains(problem.Message, "presents the right certificate") {
			kept = append(kept, problem)
		}
	}
	return kept
}

// notConverged reports what was seen, and puts the previous configuration back.
func (o *Changing) notConverged(ctx context.Context, st *state, p *plan, applied *configv1alpha1.CredentialIssuer, result *Result, seen observation) error {
	o.progress.Fail("The certificate was not seen at the endpoint within %s", o.Timeout)
	for _, problem := range seen.problems {
		o.progress.Fail("%s", problem)
	}
	result.Action = actionNotConverged
	result.Endpoint, result.Addresses, result.Problems = seen.view.at.url, seen.addresses, seen.problems
	cause := "no answer"
	if len(seen.problems) > 0 {
		cause = seen.problems[0]
	}
	failed := fmt.Errorf("the change did not take effect within %s: %s", o.Timeout, cause)
	hint := ""
	switch {
	case applied == nil:
		hint = "nothing was changed: the CredentialIssuer was configured like this already"
	case o.NoRollback:
		hint = "the new configuration is in place, as --no-rollback asks"
	default:
		if err := o.rollBack(ctx, st, p, applied); err != nil {
			failed = fmt.Errorf("%w; %w", failed, err)
			hint = "look at the CredentialIssuer: kubectl get credentialissuer " + st.issuer.Name + " -o yaml"
		} else {
			result.RolledBack = true
			hint = "the previous configuration was put back; mend the cause, or give more time with --timeout"
		}
	}
	if seen.hint != "" {
		hint += "; about the address: " + seen.hint
	}
	return ui.WithExitCode(ui.WithHint(failed, "%s", hint), ui.ExitNotConverged)
}

// rollBack puts the previous configuration back, unless somebody has changed it again.
func (o *Changing) rollBack(ctx context.Context, st *state, p *plan, applied *configv1alpha1.CredentialIssuer) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		current, err := o.cluster.CredentialIssuer(ctx, applied.Name)
		if err != nil {
			return fmt.Errorf("putting the previous configuration back: %w", err)
		}
		if spec := current.Spec.ImpersonationProxy; spec == nil || len(changesBetween(*spec, p.wanted)) > 0 {
			return errors.New("somebody else has changed the configuration meanwhile, so it was left as it is")
		}
		patch, err := rollbackPatch(current, st.issuer)
		if err != nil {
			return fmt.Errorf("putting the previous configuration back: %w", err)
		}
		_, err = o.cluster.MergeCredentialIssuer(ctx, current.Name, patch, discovery.ApplyOptions{FieldManager: fieldManager})
		switch {
		case err == nil:
			o.progress.Done("Put the previous configuration back")
			if p.putBack != nil {
				return p.putBack(ctx)
			}
			return nil
		case errors.Is(err, discovery.ErrConflict) && attempt < attempts:
		default:
			return fmt.Errorf("putting the previous configuration back: %w", err)
		}
	}
}
