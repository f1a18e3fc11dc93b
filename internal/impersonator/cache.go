package impersonator

import (
	"container/list"
	"sync"
	"time"
)

// boundedCache keeps a number of values at most, each until its own time. When it is full, the value that was not used for the
// longest time makes room. It is safe for concurrent use.
type boundedCache[K comparable, V any] struct {
	most int

	mu    sync.Mutex
	items map[K]*list.Element
	order *list.List // most recently used first
}

type cacheItem[K comparable, V any] struct {
	key   K
	value V
	until time.Time
}

func newBoundedCache[K comparable, V any](most int) *boundedCache[K, V] {
	return &boundedCache[K, V]{most: most, items: map[K]*list.Element{}, order: list.New()}
}

// get returns the value of key when it has one that is good at now.
func (c *boundedCache[K, V]) get(key K, now time.Time) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var none V
	element, ok := c.items[key]
	if !ok {
		return none, false
	}
	item := element.Value.(*cacheItem[K, V])
	if !now.Before(item.until) {
		c.order.Remove(element)
		delete(c.items, key)
		return none, false
	}
	c.order.MoveToFront(element)
	return item.value, true
}

// put keeps value under key until then.
func (c *boundedCache[K, V]) put(key K, value V, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if element, ok := c.items[key]; ok {
		item := element.Value.(*cacheItem[K, V])
		item.value, item.until = value, until
		c.order.MoveToFront(element)
		return
	}
	if len(c.items) >= c.most {
		oldest := c.order.Back()
		c.order.Remove(oldest)
		delete(c.items, oldest.Value.(*cacheItem[K, V]).key)
	}
	c.items[key] = c.order.PushFront(&cacheItem[K, V]{key: key, value: value, until: until})
}

func (c *boundedCache[K, V]) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.items)
}
