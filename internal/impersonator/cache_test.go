package impersonator

import (
	"testing"
	"time"
)

func TestBoundedCache(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	c := newBoundedCache[string, int](2)
	c.put("a", 1, at(10))
	c.put("b", 2, at(20))
	if got, ok := c.get("a", at(9)); !ok || got != 1 {
		t.Errorf("want 1, got %d, %t", got, ok)
	}
	c.put("c", 3, at(20)) // b was not used for longest
	if _, ok := c.get("b", at(9)); ok {
		t.Error("want b to have made room")
	}
	if _, ok := c.get("a", at(10)); ok {
		t.Error("want a gone at its time")
	}
	c.put("c", 4, at(30))
	if got, ok := c.get("c", at(25)); !ok || got != 4 || c.len() != 1 {
		t.Errorf("want c replaced and alone, got %d, %t of %d", got, ok, c.len())
	}
}
