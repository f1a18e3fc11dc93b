// Package namedwatch follows single objects by their names, so that nothing else of a namespace is ever read or held
// in memory: Secrets that an admin names, and the few that are the agent's own.
package namedwatch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// syncTimeout bounds how long the first read of an object may take. A later read is from memory.
const syncTimeout = 10 * time.Second

// Watcher follows objects of one resource. An object is watched from the first time it is asked for until Forget.
// It is safe for concurrent use.
type Watcher[T runtime.Object] struct {
	ctx      context.Context //nolint:containedctx // the life of the watches, which outlive the calls that start them
	client   rest.Interface
	resource string
	example  T
	changed  func(types.NamespacedName)

	mu      sync.Mutex
	watches map[types.NamespacedName]*watch
}

type watch struct {
	store  cache.Store
	synced cache.InformerSynced
	cancel context.CancelFunc
}

// New returns a Watcher for one resource (for example "secrets") of the API group that client speaks. Watches end with ctx.
// changed is called, from many goroutines, after an object came, changed or went; it must not block.
func New[T runtime.Object](ctx context.Context, client rest.Interface, resource string, example T, changed func(types.NamespacedName)) *Watcher[T] {
	return &Watcher[T]{
		ctx: ctx, client: client, resource: resource, example: example, changed: changed,
		watches: map[types.NamespacedName]*watch{},
	}
}

// Get returns the object, or false when there is none. The caller must not change it.
// It returns an error when the object could not be read for the first time within ten seconds, as when the API server is away
// or does not permit it.
func (w *Watcher[T]) Get(ctx context.Context, name types.NamespacedName) (T, bool, error) {
	var none T
	entry := w.watch(name)
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), entry.synced) {
		return none, false, fmt.Errorf("reading %s %q: no answer from the API server that permits it", w.resource, name)
	}
	item, found, err := entry.store.GetByKey(cache.NewObjectName(name.Namespace, name.Name).String())
	if err != nil {
		return none, false, fmt.Errorf("reading %s %q: %w", w.resource, name, err)
	}
	if !found {
		return none, false, nil
	}
	return item.(T), true, nil
}

// Forget stops watching every object for which keep is false.
func (w *Watcher[T]) Forget(keep func(types.NamespacedName) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, entry := range w.watches {
		if !keep(name) {
			entry.cancel()
			delete(w.watches, name)
		}
	}
}

func (w *Watcher[T]) watch(name types.NamespacedName) *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if entry, ok := w.watches[name]; ok {
		return entry
	}
	notify := func(any) {
		if w.changed != nil {
			w.changed(name)
		}
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(w.client, w.resource, name.Namespace,
			fields.OneTermEqualSelector("metadata.name", name.Name)),
		ObjectType: w.example,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    notify,
			UpdateFunc: func(_, current any) { notify(current) },
			DeleteFunc: notify,
		},
		Transform: withoutManagedFields,
	})
	ctx, cancel := context.WithCancel(w.ctx)
	go controller.RunWithContext(ctx)
	entry := &watch{store: store, synced: controller.HasSynced, cancel: cancel}
	w.watches[name] = entry
	return entry
}

// withoutManagedFields drops what nobody here reads and what is often larger than the object.
func withoutManagedFields(item any) (any, error) {
	if object, err := meta.Accessor(item); err == nil {
		object.SetManagedFields(nil)
	}
	return item, nil
}
