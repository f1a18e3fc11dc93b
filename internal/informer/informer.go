// Package informer watches single objects by name. An ordinary informer holds every object of a kind in memory. This
// one only watches the objects that were read: the Secret that an admin names, and the few objects of the agent itself.
package informer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// syncTimeout is the timeout of the first read of an object. Later reads are from memory.
const syncTimeout = 10 * time.Second

// Object is an object that can be watched.
type Object interface {
	runtime.Object
	metav1.Object
}

// ByName watches objects of one resource by name, from the first Get until Forget. It is safe for concurrent use.
type ByName[T Object] struct {
	ctx      context.Context //nolint:containedctx // of the watches, which outlive the calls that start them
	client   rest.Interface
	resource string
	example  T
	changed  func(types.NamespacedName)

	mu      sync.Mutex
	watches map[types.NamespacedName]*entry[T]
}

// New returns an informer for one resource, such as "secrets", of client's API group. All watches end with ctx. changed
// is called after an object was created, changed or deleted, by several goroutines; it must not block.
func New[T Object](
	ctx context.Context,
	client rest.Interface,
	resource string,
	example T,
	changed func(types.NamespacedName),
) *ByName[T] {
	return &ByName[T]{
		ctx: ctx, client: client, resource: resource, example: example, changed: changed,
		watches: map[types.NamespacedName]*entry[T]{},
	}
}

// Get returns the object, or false when the object or the resource does not exist. The caller must not change it. The
// first Get of an object waits up to ten seconds for the API server, and fails when that does not respond or does not
// permit it. Later ones read from memory.
func (w *ByName[T]) Get(ctx context.Context, name types.NamespacedName) (T, bool, error) {
	e := w.follow(name)
	ctx, cancel := context.WithTimeoutCause(ctx, syncTimeout, errors.New("no response from the API server"))
	defer cancel()
	select {
	case <-e.synced:
		object, found := e.get()
		return object, found, nil
	case <-ctx.Done():
		var none T
		err := e.lastFailure()
		if err == nil {
			err = context.Cause(ctx)
		}
		return none, false, fmt.Errorf("reading %s %q: %w", w.resource, text(name), err)
	}
}

// text returns NAMESPACE/NAME, or NAME without a namespace.
func text(name types.NamespacedName) string {
	return cache.NewObjectName(name.Namespace, name.Name).String()
}

// Forget stops watching every object for which keep is false.
func (w *ByName[T]) Forget(keep func(types.NamespacedName) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, e := range w.watches {
		if !keep(name) {
			e.cancel()
			delete(w.watches, name)
		}
	}
}

func (w *ByName[T]) follow(name types.NamespacedName) *entry[T] {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e, ok := w.watches[name]; ok {
		return e
	}
	ctx, cancel := context.WithCancel(w.ctx) //nolint:gosec // Forget calls it
	e := &entry[T]{cancel: cancel, synced: make(chan struct{}), changed: func() {
		if w.changed != nil {
			w.changed(name)
		}
	}}
	w.watches[name] = e
	from := cache.NewListWatchFromClient(
		w.client,
		w.resource,
		name.Namespace,
		fields.OneTermEqualSelector("metadata.name", name.Name),
	)
	reflector := cache.NewReflectorWithOptions(e.recording(from), w.example, e, cache.ReflectorOptions{
		Name: w.resource + " " + text(name),
		// After an outage, a renewed certificate should not wait for half a minute, the library's default.
		Backoff: &wait.Backoff{Duration: 200 * time.Millisecond, Cap: 5 * time.Second, Steps: 6, Factor: 2, Jitter: 0.5},
	})
	go reflector.RunWithContext(ctx)
	return e
}

// entry is a watched object. The reflector updates it.
type entry[T Object] struct {
	cancel  context.CancelFunc
	changed func()
	once    sync.Once
	synced  chan struct{} // closed after the first read of the object

	mu      sync.RWMutex
	object  T
	found   bool
	failure error // of the latest attempt to read
}

var _ cache.ReflectorStore = &entry[Object]{}

func (e *entry[T]) get() (T, bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.object, e.found
}

func (e *entry[T]) set(object T, found bool) {
	if found {
		object.SetManagedFields(lastWrite(object.GetManagedFields()))
	}
	e.mu.Lock()
	e.object, e.found, e.failure = object, found, nil
	e.mu.Unlock()
	e.changed()
}

// lastWrite reduces managed fields to the time of the last write, by the API server's clock. The rest is often larger
// than the object, and is not used.
func lastWrite(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	var last *metav1.Time
	for _, entry := range entries {
		if entry.Time != nil && (last == nil || last.Before(entry.Time)) {
			last = entry.Time
		}
	}
	if last == nil {
		return nil
	}
	return []metav1.ManagedFieldsEntry{{Time: last}}
}

// Add implements cache.ReflectorStore.
func (e *entry[T]) Add(object any) error { return e.Update(object) }

// Update implements cache.ReflectorStore.
func (e *entry[T]) Update(object any) error {
	typed, ok := object.(T)
	if !ok {
		return fmt.Errorf("a %T came where a %T was asked for", object, e.object)
	}
	e.set(typed, true)
	return nil
}

// Delete implements cache.ReflectorStore.
func (e *entry[T]) Delete(any) error {
	var none T
	e.set(none, false)
	return nil
}

// Replace implements cache.ReflectorStore. The list has the object or is empty.
func (e *entry[T]) Replace(list []any, _ string) error {
	defer e.once.Do(func() { close(e.synced) })
	if len(list) > 0 {
		return e.Update(list[0])
	}
	return e.Delete(nil)
}

// withoutResource is called when the API server does not serve the resource, because its definition was removed: the
// object does not exist either. After the first read, it changes nothing: the watch has reported the deletion of each
// object.
func (e *entry[T]) withoutResource() {
	e.once.Do(func() {
		_ = e.Delete(nil) // never fails
		close(e.synced)
	})
}

// Resync implements cache.ReflectorStore.
func (*entry[T]) Resync() error { return nil }

func (e *entry[T]) lastFailure() error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.failure
}

// recording returns a ListWatch like from that keeps the latest error for Get.
func (e *entry[T]) recording(from *cache.ListWatch) *cache.ListWatch {
	note := func(err error) {
		if err != nil {
			e.mu.Lock()
			e.failure = err
			e.mu.Unlock()
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := from.ListWithContext(ctx, options)
			note(err)
			if apierrors.IsNotFound(err) {
				e.withoutResource()
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
			events, err := from.WatchWithContext(ctx, options)
			note(err)
			return events, err
		},
	}
}
