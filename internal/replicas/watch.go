package replicas

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// watch watches the Leases of all replicas until ctx ends.
func (r *Registry) watch(ctx context.Context) {
	selector := labels.SelectorFromSet(labels.Set{labelOf: r.options.Group}).String()
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = selector
			return r.options.Leases.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
			options.LabelSelector = selector
			return r.options.Leases.Watch(ctx, options)
		},
	}
	cache.NewReflectorWithOptions(from, &coordinationv1.Lease{}, (*store)(r), cache.ReflectorOptions{
		Name: "leases of " + r.options.Group,
		// Retries fast after an outage, like internal/informer.
		Backoff: &wait.Backoff{Duration: 200 * time.Millisecond, Cap: 5 * time.Second, Steps: 6, Factor: 2, Jitter: 0.5},
	}).RunWithContext(ctx)
}

// store makes the Registry a cache.ReflectorStore.
type store Registry

var _ cache.ReflectorStore = &store{}

// Add implements cache.ReflectorStore.
func (s *store) Add(object any) error { return s.Update(object) }

// Update implements cache.ReflectorStore.
func (s *store) Update(object any) error { return s.change(object, (*Registry).observe) }

// Delete implements cache.ReflectorStore.
func (s *store) Delete(object any) error {
	return s.change(object, func(r *Registry, lease *coordinationv1.Lease) { delete(r.others, lease.Name) })
}

func (s *store) change(object any, do func(*Registry, *coordinationv1.Lease)) error {
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return fmt.Errorf("got a %T instead of a Lease", object)
	}
	r := (*Registry)(s)
	r.mu.Lock()
	do(r, lease)
	r.mu.Unlock()
	r.notify()
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *store) Replace(list []any, _ string) error {
	r := (*Registry)(s)
	r.mu.Lock()
	there := map[string]bool{}
	for _, object := range list {
		if lease, ok := object.(*coordinationv1.Lease); ok {
			there[lease.Name] = true
			r.observe(lease)
		}
	}
	maps.DeleteFunc(r.others, func(name string, _ observed) bool { return !there[name] })
	r.mu.Unlock()
	r.notify()
	return nil
}

// Resync implements cache.ReflectorStore.
func (*store) Resync() error { return nil }

// observe records a Lease. A report that cannot be read, such as that of a newer agent, still shows that the replica is
// alive.
func (r *Registry) observe(lease *coordinationv1.Lease) {
	now := observed{at: r.options.Clock.Now(), lease: lease}
	if err := json.Unmarshal([]byte(lease.Annotations[annotationReport]), &now.report); err != nil {
		now.report = Report{Problem: "this version of the agent cannot read its report"}
	}
	now.report.Name = ptr.Deref(lease.Spec.HolderIdentity, lease.Name)
	now.report.Problem = shorten(now.report.Problem)
	if lease.Spec.RenewTime != nil {
		now.renew = *lease.Spec.RenewTime
	}
	if before, ok := r.others[lease.Name]; ok && before.renew.Equal(&now.renew) {
		now.at = before.at
	}
	r.others[lease.Name] = now
}
