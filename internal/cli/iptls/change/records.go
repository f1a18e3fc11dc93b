package change

import (
	"context"
	"errors"
	"slices"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// remember makes the proposal write down what it takes the place of, for "ip-tls undo", and that it was made, for
// "ip-tls history".
func (c *Change) remember(ctx context.Context, p *Proposal) error {
	if p.Annotations == nil {
		p.Annotations = map[string]any{}
	}
	record := plan.NewUndoRecord(c.Verb.Name(), c.Session.Now(), p.Snapshot.Issuer, p.Plan.Wanted)
	ofSecret := func(f plan.FieldChange) bool { return f.OfSecret() }
	replaces := func(f plan.FieldChange) bool { return f.OfSecret() && f.From != "" }
	secret := p.Plan.Request.Secret
	switch {
	case slices.ContainsFunc(p.Plan.Changes, replaces):
		record.SecretReplaced = secret
		if c.Flags.DryRun == session.DryRunNone {
			c.Session.Progress.Warn("what is in Secret %q now is replaced, and not kept: \"pinniped ip-tls undo\" "+
				"will not bring it back", secret)
		}
	case slices.ContainsFunc(p.Plan.Changes, ofSecret) && !slices.Contains(record.SecretsMade, secret):
		record.SecretsMade = append(record.SecretsMade, secret)
	}
	text, fits, err := plan.EncodeRecord(record)
	if err != nil {
		return err
	}
	p.Annotations[plan.UndoAnnotation] = text
	if !fits {
		c.Session.Progress.Warn("the configuration is too large to be kept for \"pinniped ip-tls undo\": save it yourself")
		p.Annotations[plan.UndoAnnotation] = nil
	}
	return c.note(ctx, p)
}

// note makes the proposal write down that the change was made.
func (c *Change) note(ctx context.Context, p *Proposal) error {
	history, err := plan.ReadHistory(p.Snapshot.Issuer)
	if err != nil {
		c.Session.Progress.Warn("the history of changes begins anew: %v", err)
	}
	p.noted = plan.NewChange(c.Verb.Name(), c.Session.User(ctx), c.Session.Now(), p.Plan.Wanted)
	text, fits, err := plan.EncodeRecord(history.With(p.noted))
	if err != nil || !fits {
		return err
	}
	p.Annotations[plan.HistoryAnnotation] = text
	return nil
}

// noteOutcome notes what came of the change, unless there is a newer one. That it cannot be noted is no failure: what
// "ip-tls history" then tells is what the status says.
func (c *Change) noteOutcome(ctx context.Context, p *Proposal, applied *configv1alpha1.CredentialIssuer,
	outcome result.ChangeOutcome,
) {
	if applied == nil || p.noted.Command == "" {
		return
	}
	for range Attempts {
		issuer, err := c.Session.Cluster.CredentialIssuer(ctx, applied.Name)
		if err != nil {
			return
		}
		history, err := plan.ReadHistory(issuer)
		newest := history.Newest()
		if err != nil || newest == nil || !newest.Same(&p.noted) || newest.Outcome == outcome {
			return
		}
		newest.Outcome = outcome
		text, _, err := plan.EncodeRecord(history)
		if err != nil {
			return
		}
		patch, err := plan.MergePatch(issuer, plan.TargetOf(issuer.Spec.ImpersonationProxy),
			map[string]any{plan.HistoryAnnotation: text})
		if err != nil {
			return
		}
		_, err = c.Session.Cluster.MergeCredentialIssuer(ctx, issuer.Name, patch,
			discovery.ApplyOptions{FieldManager: plan.FieldManager})
		if !errors.Is(err, discovery.ErrConflict) {
			return
		}
	}
}

// historyOfRollback returns the annotation that tells that the change was put back; nil when it was not noted.
func (p *Proposal) historyOfRollback(current *configv1alpha1.CredentialIssuer) (string, bool) {
	history, err := plan.ReadHistory(current)
	newest := history.Newest()
	if err != nil || newest == nil || !newest.Same(&p.noted) {
		return "", false
	}
	newest.Outcome = result.ChangePutBack
	text, fits, err := plan.EncodeRecord(history)
	return text, fits && err == nil
}

// Merge makes the API server store a proposal by a merge patch, no matter which manager owns the fields until then.
func Merge(ctx context.Context, cluster session.Cluster, p *Proposal,
	dryRun string,
) (*configv1alpha1.CredentialIssuer, error) {
	issuer := p.Snapshot.Issuer
	patch, err := plan.MergePatch(issuer, plan.TargetOf(&p.Plan.Wanted), p.Annotations)
	if err != nil {
		return nil, err
	}
	return cluster.MergeCredentialIssuer(ctx, issuer.Name, patch,
		discovery.ApplyOptions{FieldManager: plan.FieldManager, DryRun: dryRun == session.DryRunServer})
}
