package agent

import (
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection"
)

// TestLeadershipMovesInTime adds up how late a candidate can be at the worst after the leader was killed:
// TestLeadershipMoves sees whatever moment it happens to meet.
func TestLeadershipMovesInTime(t *testing.T) {
	t.Parallel()
	look := float64(retryPeriod) * (1 + leaderelection.JitterFactor)
	if worst := leaseDuration + time.Duration(2*look); worst > 18*time.Second {
		t.Errorf("leadership moves after up to %s, which leaves less than 2 seconds of 20 for writing the status", worst)
	}
}
