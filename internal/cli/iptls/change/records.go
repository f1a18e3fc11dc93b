package change

import (
	"context"
	"slices"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// remember makes the proposal write down what it takes the place of, for "ip-tls undo".
func (c *Change) remember(p *Proposal) error {
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
	return nil
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
