package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
)

// Leadership moves at once when the leader stops, and within 20 seconds when it is killed. A candidate reads the Lease
// every retryPeriod, and up to leaderelection.JitterFactor times that later, so it may observe the last renewal that
// late. Then it waits for leaseDuration, and may be late by as much again: 16.6 seconds in all.
const (
	leaseDuration = 10 * time.Second
	renewDeadline = 7 * time.Second
	retryPeriod   = 1500 * time.Millisecond
)

// leadership takes part in the election of the one replica that writes to the cluster. A replica that loses leadership
// continues to serve: it also loses it when the API server is unavailable, and connections must not be dropped then.
type leadership struct {
	elector *leaderelection.LeaderElector
	held    func() bool     // whether the elector holds the Lease
	life    context.Context //nolint:containedctx // of run; the election's callback does not get it

	mu   sync.Mutex
	term context.Context //nolint:containedctx // ends with the last term of leadership; nil without one
}

// newLeadership returns a candidate for Lease namespace/name with this identity. changed is called when its leadership
// begins or ends.
func newLeadership(
	client coordinationv1client.LeasesGetter, namespace, name, identity string, labels map[string]string, changed func(),
) (*leadership, error) {
	l := &leadership{}
	var err error
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

// begin records the start of a term of leadership. It returns false if the term is already over: the elector runs this
// callback in its own goroutine, which may start late.
func (l *leadership) begin(term context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if term.Err() != nil {
		return false
	}
	l.term = term
	return true
}

// end records the end of the term, and reports whether there was one.
func (l *leadership) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	led := l.term != nil
	l.term = nil
	return led
}

// Leading reports whether this replica holds the Lease and may write. It is false as soon as the elector has observed
// another holder or has not renewed the Lease for renewDeadline, even before the elector gives up.
func (l *leadership) Leading() bool {
	l.mu.Lock()
	leads := l.term != nil && l.term.Err() == nil
	l.mu.Unlock()
	return leads && l.held()
}

// run is a candidate until ctx ends, and then releases the Lease.
func (l *leadership) run(ctx context.Context) {
	l.life = ctx
	for ctx.Err() == nil {
		l.elector.Run(ctx)
	}
}
