package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// readLife finds out whether the agent runs. Its status alone does not tell: nothing updates it when the agent is gone.
func (o *Options) readLife(ctx context.Context, namespace string, l *snapshot) error {
	if l.Agent == nil {
		return nil
	}
	l.Agent.Running = result.AnswerUnknown
	leases, err := o.Session.Cluster.ReplicaLeases(ctx, namespace)
	switch {
	case errors.Is(err, discovery.ErrUnreachable), ctx.Err() != nil:
		return fmt.Errorf("reading the Leases of the agent's replicas: %w", err)
	case err != nil:
		l.notKnown("whether the agent runs: %s", err)
		return nil
	case len(leases) == 0 && l.issuer.Status.Objects == nil:
		return nil // it is not this agent, or an older one
	}
	now := o.Session.ServerNow()
	l.Agent.Running = result.AnswerNo
	for _, lease := range leases {
		if lease.Lives(now) {
			l.Agent.Running = result.AnswerYes
		}
		if renewed := lease.Renewed.UTC().Truncate(time.Second); l.Agent.LastSeen == nil || renewed.After(*l.Agent.LastSeen) {
			l.Agent.LastSeen = &renewed
		}
	}
	if l.Agent.Running == result.AnswerYes || l.view.Disabled {
		return nil
	}
	when := "none has left a sign of life"
	if l.Agent.LastSeen != nil {
		when = "the last sign of life is of " + l.Agent.LastSeen.Format(time.RFC3339)
	}
	l.problem(codeAgentNotRunning, "no replica of the agent runs: %s; what it reports is from before", when)
	return nil
}
