package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/ptr"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestLeadershipMovesInTime computes the maximum delay of a candidate after the leader was killed; TestLeadershipMoves
// only measures one case.
func TestLeadershipMovesInTime(t *testing.T) {
	t.Parallel()
	retry := float64(retryPeriod) * (1 + leaderelection.JitterFactor)
	if worst := leaseDuration + time.Duration(2*retry); worst > 18*time.Second {
		t.Errorf("leadership moves after up to %s, which leaves less than 2 seconds of 20 for writing the status", worst)
	}
}

// TestLeadingEndsWithTheLease moves the Lease of a leader to another replica. Leading is false as soon as the elector
// has observed that, though the elector tries to renew until renewDeadline.
func TestLeadingEndsWithTheLease(t *testing.T) {
	t.Parallel()
	client := must.Get(kubernetes.NewForConfig(testkit.Cluster(t, devcluster.Options{}).AdminConfig()))(t)
	l := must.Get(newLeadership(client.CoordinationV1(), corev1.NamespaceDefault, "leader", "a", nil, func() {}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); l.run(ctx) }()
	defer func() { cancel(); <-ended }()
	within := func(what string, condition func() bool) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			if !condition() {
				return errors.New(what)
			}
			return nil
		})
	}
	within("does not lead", l.Leading)
	testkit.Eventually(t, time.Minute, func() error {
		leases := client.CoordinationV1().Leases(corev1.NamespaceDefault)
		lease, err := leases.Get(ctx, "leader", metav1.GetOptions{})
		if err != nil {
			return err
		}
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = ptr.To("b"), ptr.To(metav1.NowMicro())
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
	within("does not see the other holder", func() bool { return !l.elector.IsLeader() })
	if l.Leading() {
		t.Error("it still leads though it knows that another replica holds the Lease")
	}
}

// TestATermThatIsOver ends a term before its start is recorded, which can happen because the elector does not wait for
// that.
func TestATermThatIsOver(t *testing.T) {
	t.Parallel()
	l := &leadership{held: func() bool { return true }}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	l.end()
	if l.begin(over) || l.Leading() {
		t.Error("it leads for ever, though the term was over before it began")
	}
	if !l.begin(t.Context()) || !l.Leading() {
		t.Error("it does not lead in the next term")
	}
	if l.begin(over) || !l.Leading() {
		t.Error("the late start of an earlier term ends this one")
	}
	if !l.end() || l.Leading() {
		t.Error("it leads after the end of the term")
	}
}
