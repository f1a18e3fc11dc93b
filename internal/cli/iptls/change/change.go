// Package change implements the commands that change the CredentialIssuer: `pinniped ip-tls set`, `unset` and `undo`.
//
// Do carries out a Change. The verb evaluates and applies it (set.go, unset.go, undo.go). wait.go waits until the
// endpoint presents the certificate, or the agent has prepared a transition (transition.go). If that fails, rollback.go
// restores the previous configuration.
package change

import (
	"context"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Change is a change of the CredentialIssuer.
type Change struct {
	Session *session.Session
	Flags   Flags
	Verb    Verb
}

// Verb is the specific part of a command that changes the CredentialIssuer.
type Verb interface {
	// Evaluate reads the cluster, decides, and prints the findings. An error refuses the change; the proposal may then
	// be set.
	Evaluate(ctx context.Context, first bool) (*Proposal, error)
	// Apply makes the change, or returns ErrConflict if the objects have changed since.
	Apply(ctx context.Context, p *Proposal) (*configv1alpha1.CredentialIssuer, error)
}

// Proposal is a change that a verb would make, with the state of the cluster.
type Proposal struct {
	Snapshot *plan.Snapshot
	Plan     *plan.Plan
	// Outcome is the outcome for the result; empty if it follows from the changes.
	Outcome result.Outcome
	// PutBack undoes changes of other objects than the CredentialIssuer; nil if there are none.
	PutBack func(context.Context) error
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
