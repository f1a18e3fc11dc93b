package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
)

// Leadership moves at once when the leader stops, and within 20 seconds when it dies. A candidate looks every
// retryPeriod, and up to leaderelection.JitterFactor times that later. It may see the last renewal that late. Then it
// waits for leaseDuration, and may be as late once more: that makes 16.6 seconds.
const (
	leaseDuration = 10 * time.Second
	renewDeadline = 7 * time.Second
	retryPeriod   = 1500 * time.Millisecond
)

// leadership takes part in the election of the one replica that writes to the cluster. A replica that loses
// leadership goes on serving: it loses leadership also when the API server is away, and then connections must not be
// dropped.
type leadership struct {
	elector *leaderelection.LeaderElector
	leading atomic.Bool
	life    context.Context //nolint:containedctx // of run, which the election's callback is not given
}

// newLeadership competes for Lease namespace/name as identity. changed is called when this replica begins or ceases
// to lead.
func newLeadership(
	config *rest.Config, namespace, name, identity string, labels map[string]string, changed func(),
) (*leadership, error) {
	client, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for Leases: %w", err)
	}
	l := &leadership{}
	l.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
			Labels:     labels,
		},
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Name:            name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				klog.FromContext(ctx).Info("Became the leader", "lease", klog.KRef(namespace, name))
				l.leading.Store(true)
				changed()
			},
			OnStoppedLeading: func() {
				if led := l.leading.Swap(false); led && l.life != nil && l.life.Err() == nil {
					logs.Warn(l.life, "Lost leadership: the Lease could not be renewed", "lease", klog.KRef(namespace, name))
				}
				changed()
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("setting up leader election: %w", err)
	}
	return l, nil
}

// Leading reports whether this replica is the one that writes.
func (l *leadership) Leading() bool { return l.leading.Load() }

// run competes until ctx ends, and then gives the Lease back at once.
func (l *leadership) run(ctx context.Context) {
	l.life = ctx
	for ctx.Err() == nil {
		l.elector.Run(ctx)
	}
}
