package session

import (
	"context"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Life is whether the agent runs, according to its replicas' Leases.
type Life struct {
	Running  result.Answer
	LastSeen *time.Time // last renewal of a Lease; nil if there is none
}

// Life finds out whether the agent runs, which the CredentialIssuer's status does not show. It is unknown for other
// agents and for old versions.
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

// Gone says when an agent that is not running last reported.
func (l Life) Gone() string {
	if l.LastSeen == nil {
		return "no replica has ever reported"
	}
	return "the last report is from " + l.LastSeen.Format(time.RFC3339)
}
