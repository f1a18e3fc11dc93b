// Package change implements the commands that change the CredentialIssuer: `pinniped ip-tls set`, `unset` and
// `undo`.
//
// Do carries out a Change: the verb evaluates and applies it (set.go, unset.go, undo.go), wait.go waits
// until the endpoint presents the certificate, or the agent waits with it for clients of the old one (transition.go), and
// rollback.go puts the previous configuration back when it does not.
package change

import (
	"context"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Change is one change of the CredentialIssuer, on its way into effect.
type Change struct {
	Session *session.Session
	Flags   Flags
	Verb    Verb
}

// Verb is what differs between the commands that change the CredentialIssuer.
type Verb interface {
	// Evaluate gathers, decides, and tells what was found. With a proposal, an error refuses it.
	Evaluate(ctx context.Context, first bool) (*Proposal, error)
	// Apply does it, if nothing has changed since.
	Apply(ctx context.Context, p *Proposal) (*configv1alpha1.CredentialIssuer, error)
}

// Proposal is what a verb would do, and what it has found.
type Proposal struct {
	Snapshot *plan.Snapshot
	Plan     *plan.Plan
	// Outcome is what the result calls it; empty for what follows from the changes.
	Outcome result.Outcome
	// PutBack undoes what Apply has changed besides the CredentialIssuer; nil when it has changed nothing else.
	PutBack func(context.Context) error
}

// merge makes the API server store a proposal by a merge patch, no matter which manager owns the fields until then.
func (c *Change) merge(ctx context.Context, p *Proposal) (*configv1alpha1.CredentialIssuer, error) {
	patch, err := plan.MergePatch(p.Snapshot.Issuer, p.Plan.Wanted)
	if err != nil {
		return nil, err
	}
	return c.Session.Cluster.MergeCredentialIssuer(ctx, p.Snapshot.Issuer.Name, patch,
		discovery.ApplyOptions{FieldManager: plan.FieldManager, DryRun: c.Flags.DryRun == session.DryRunServer})
}
