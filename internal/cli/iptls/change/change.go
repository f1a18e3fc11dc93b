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
	// Name is the command's, for records.
	Name() string
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
	// Annotations are written together with the changes: a string, or nil to remove one.
	Annotations map[string]any
	// PutBack undoes what Apply has changed besides the CredentialIssuer; nil when it has changed nothing else.
	PutBack func(context.Context) error
}
