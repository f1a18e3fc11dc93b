package change

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
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
	c.Session.Progress.Info("This replaces the transition to %s (%s)", to, result.TransitionOf(t))
}

// mayBreak reports whether clients of the old certificate may break, including those added after the check.
func (p *Proposal) mayBreak() bool {
	return slices.Contains(p.Plan.Request.Allow, certs.OldClientsBreak)
}

// retire retires the revisions that the transition waits for if clients may break, or if the kubeconfigs of
// --kubeconfigs all verify the new certificate. It returns false if the agent continues to wait.
func (c *Change) retire(ctx context.Context, p *Proposal, seen observation, done *Result) (bool, error) {
	why := "--allow OldClientsBreak is set"
	if !p.mayBreak() {
		why = "no kubeconfig in --kubeconfigs needs the old certificate"
		if verify, err := c.kubeconfigsVerify(ctx, p, seen, done); err != nil || !verify {
			return false, err
		}
	}
	ids, err := c.Session.Retire(ctx, seen.issuer, p.Plan.Request.Namespace, seen.transition.WaitsFor)
	if len(ids) > 0 {
		c.Session.Progress.Done("Retired %s, because %s", revisions(ids), why)
	}
	return len(ids) > 0, err
}

// revisions returns the IDs in quotes, after the noun.
func revisions(ids []string) string {
	noun, quoted := "revision ", make([]string, len(ids))
	for i, id := range ids {
		quoted[i] = fmt.Sprintf("%q", id)
	}
	if len(ids) > 1 {
		noun = "revisions "
	}
	return noun + strings.Join(quoted, ", ")
}

// prepared sets the result of a change whose certificate is not served yet.
func (c *Change) prepared(ctx context.Context, p *Proposal, seen observation, done *Result) error {
	done.Outcome, done.Transition = result.OutcomePrepared, result.TransitionOf(seen.transition)
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
	return ui.WithExitCode(ui.WithHint(errors.New(text),
		`give these clients the new CA ("pinniped kubeconfig rotate", or "pinniped get kubeconfig"), and run the same `+
			`command again; pass --kubeconfigs to show that they have it, --activate-after to limit the wait, or `+
			`--allow OldClientsBreak to end it`), ui.ExitNotDue)
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
		c.Session.Progress.Warn("the revisions whose clients break could not be retired (%v), so later changes still "+
			"take them into account; retire them: pinniped ip-tls history --retire %s", err, strings.Join(p.Plan.Lost, ", "))
	case len(gone) > 0:
		c.Session.Progress.Done("Retired %s (--allow OldClientsBreak), so later changes ignore clients of the old "+
			"certificate", revisions(gone))
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

// kubeconfigsVerify reports whether kubeconfigs of --kubeconfigs use the endpoint, and all verify the new certificate.
func (c *Change) kubeconfigsVerify(ctx context.Context, p *Proposal, seen observation, done *Result) (bool, error) {
	url, _, _ := serving.Frontend(serving.Strategy(seen.issuer))
	if url == "" {
		return false, errors.New("the kubeconfigs cannot be compared with the endpoint, because none is published")
	}
	endpoint, missing, err := c.Session.Endpoint(ctx, seen.issuer, p.Plan.Request.Namespace, url)
	if err != nil {
		return false, err
	}
	if missing != "" {
		c.Session.Progress.Warn("%s", missing)
	}
	found, err := c.Session.ReadKubeconfigs(ctx, c.Flags.Kubeconfigs)
	if err != nil {
		return false, fmt.Errorf("reading --kubeconfigs: %w", err)
	}
	next, bad := serving.Served{Chain: p.Plan.Next.Chain()}, 0
	for _, file := range found {
		one := c.evaluateFile(file, endpoint, next)
		if one.Outcome == result.FileUnrelated {
			continue
		}
		if done.Kubeconfigs = append(done.Kubeconfigs, one); one.Outcome != result.FileWorks {
			bad++
			c.Session.Progress.Warn("kubeconfig %q: %s", one.Path, one.Reason)
		}
	}
	all := len(done.Kubeconfigs)
	switch {
	case all == 0:
		c.Session.Progress.Warn("no kubeconfig in --kubeconfigs uses %s", url)
	case bad == 0:
		c.Session.Progress.Done("All %d kubeconfigs for %s verify the new certificate", all, url)
	}
	return all > 0 && bad == 0, nil
}

// evaluateFile checks whether all entries of a kubeconfig that use the endpoint verify the new certificate.
func (c *Change) evaluateFile(file session.Kubeconfig, endpoint kubeconfig.Endpoint, next serving.Served) result.File {
	one := result.File{Path: file.File, Outcome: result.FileWorks}
	if file.Err != nil {
		one.Outcome, one.Reason = result.FileFailed, file.Err.Error()
		return one
	}
	places := kubeconfig.Trusts(file.Config, endpoint)
	if len(places) == 0 {
		one.Outcome = result.FileUnrelated
	}
	for _, place := range places {
		entry := result.Entry{Kind: result.EntryKind(place.Kind), Name: place.Name, Outcome: result.FileWorks}
		code := (&serving.Client{Name: place.Host, Bundle: place.CABundle}).Meets(next, c.Session.Now())
		switch {
		case place.Uncertain:
			entry.Outcome, entry.Reason = result.FileNotKnown, fmt.Sprintf(
				"connects to %q, which only a wildcard of the certificate covers, so this may be another endpoint", place.Host)
		case place.Insecure:
		case place.Err != nil:
			entry.Outcome, entry.Reason = result.FileBroken, place.Err.Error()
		case code == certs.NameNotCovered:
			entry.Outcome = result.FileWillBreak
			entry.Reason = fmt.Sprintf("expects the name %q, which the new certificate does not cover", place.Host)
		case code != "":
			trusted := "the system roots"
			if len(place.CABundle) > 0 {
				trusted = serving.Describe(place.CABundle)
			}
			entry.Outcome = result.FileWillBreak
			entry.Reason = "trusts " + trusted + ", which does not verify the new certificate"
		}
		one.Entries = append(one.Entries, entry)
		if entry.Reason != "" && one.Reason == "" {
			one.Outcome, one.Reason = entry.Outcome, place.Where+" "+entry.Reason
		}
	}
	for _, name := range slices.Sorted(maps.Keys(file.Config.Contexts)) {
		of := file.Config.Contexts[name]
		program := kubeconfig.UnknownPlugin(file.Config.AuthInfos[of.AuthInfo])
		leads := slices.ContainsFunc(places, func(place kubeconfig.Trust) bool {
			return place.Kind == string(result.EntryCluster) && place.Name == of.Cluster
		})
		if program == "" || !leads {
			continue
		}
		entry := result.Entry{Kind: result.EntryContext, Name: name, Outcome: result.FileNotKnown}
		entry.Reason = fmt.Sprintf("logs in with the plugin %q, whose trusted CAs are unknown", program)
		one.Entries = append(one.Entries, entry)
		if one.Reason == "" {
			one.Outcome, one.Reason = entry.Outcome, fmt.Sprintf("context %q %s", name, entry.Reason)
		}
	}
	return one
}
