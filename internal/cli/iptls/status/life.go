package status

import (
	"context"
	"errors"
	"fmt"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// readLife finds out whether the agent runs, which its status does not show.
func (o *Options) readLife(ctx context.Context, namespace string, l *snapshot) error {
	if l.Agent == nil {
		return nil
	}
	life, err := o.Session.Life(ctx, namespace, l.issuer)
	l.Agent.Running, l.Agent.LastSeen = life.Running, life.LastSeen
	switch {
	case errors.Is(err, discovery.ErrUnreachable), ctx.Err() != nil:
		return fmt.Errorf("reading the Leases of the agent's replicas: %w", err)
	case err != nil:
		l.notKnown("whether the agent runs: %s", err)
	case life.Running == result.AnswerNo && !l.view.Disabled:
		l.problem(codeAgentNotRunning, "no agent replica is running: %s; its report is outdated", life.Gone())
	}
	return nil
}
