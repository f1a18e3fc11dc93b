package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
)

// Leadership moves at once when the leader stops, and within 20 seconds when it dies. A candidate reads the Lease every
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
	held    func() bool     // whether this replica holds the Lease now, as far as the elector knows
	life    context.Context //nolint:containedctx // of run, which the election's callback is not given

	mu   sync.Mutex
	term context.Context //nolint:containedctx // ends with the leadership that began last; nil before the first
}

// newLeadership competes for Lease namespace/name as identity. changed is called when this replica begins or ceases
// to lead.
func newLeadership(
	config *rest.Config, namespace, name, identity string, labels map[string]string, changed func(),
) (*leadership, error) {
	client, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for Leases: %w", err)
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
				if l.begin(ctx) {
					klog.FromContext(ctx).Info("Became the leader", "lease", klog.KRef(namespace, name))
					changed()
				}
			},
			OnStoppedLeading: func() {
				if led := l.end(); led && l.life != nil && l.life.Err() == nil {
					logs.Warn(l.life, "Lost leadership: failed to renew the Lease", "lease", klog.KRef(namespace, name))
				}
				changed()
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("setting up leader election: %w", err)
	}
	l.held = func() bool { return l.elector.IsLeader() && l.elector.Check(renewDeadline-leaseDuration) == nil }
	return l, nil
}

// begin notes that a term of leadership has begun. It reports false for a term that is over: the elector starts this
// callback in a goroutine of its own, which may come after the end of the term.
func (l *leadership) begin(term context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if term.Err() != nil {
		return false
	}
	l.term = term
	return true
}

// end notes that no term is running any more, and reports whether there was one.
func (l *leadership) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	led := l.term != nil
	l.term = nil
	return led
}

// Leading reports whether this replica is the one that writes: it holds the Lease now. It is false as soon as the
// elector has observed another holder, or has not renewed the Lease for renewDeadline, also before the elector gives
// up.
func (l *leadership) Leading() bool {
	l.mu.Lock()
	leads := l.term != nil && l.term.Err() == nil
	l.mu.Unlock()
	return leads && l.held()
}

// run competes until ctx ends, and then gives the Lease back at once.
func (l *leadership) run(ctx context.Context) {
	l.life = ctx
	for ctx.Err() == nil {
		l.elector.Run(ctx)
	}
}
