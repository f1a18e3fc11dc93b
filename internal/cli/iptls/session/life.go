package session

import (
	"context"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Life is what the Leases of the agent's replicas tell.
type Life struct {
	Running  result.Answer
	LastSeen *time.Time // when a replica renewed its Lease last; nil when there is no Lease
}

// Life finds out whether the agent runs. Its status alone does not tell: nothing updates it when the agent is gone. Of
// another agent than this one, or an older one, it is not known.
func (s *Session) Life(ctx context.Context, namespace string, issuer *configv1alpha1.CredentialIssuer) (Life, error) {
	life := Life{Running: result.AnswerUnknown}
	leases, err := s.Cluster.ReplicaLeases(ctx, namespace)
	if err != nil || len(leases) == 0 && issuer.Status.Objects == nil {
		return life, err
	}
	life.Running = result.AnswerNo
	for _, lease := range leases {
		if lease.Lives(s.ServerNow()) {
			life.Running = result.AnswerYes
		}
		if renewed := lease.Renewed.UTC().Truncate(time.Second); life.LastSeen == nil || renewed.After(*life.LastSeen) {
			life.LastSeen = &renewed
		}
	}
	return life, nil
}

// Gone says when an agent that does not run was seen last.
func (l Life) Gone() string {
	if l.LastSeen == nil {
		return "none has reported"
	}
	return "the last report is from " + l.LastSeen.Format(time.RFC3339)
}
