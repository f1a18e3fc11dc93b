package signer

import (
	"sync"
	"testing"
	"time"
)

func TestKeysAreGivenAwayOnce(t *testing.T) {
	t.Parallel()
	keys := &keyStock{}
	keys.refill()
	known := sync.Map{}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 2 * stock {
				key, err := keys.take()
				if err != nil {
					t.Error(err)
					return
				}
				if _, twice := known.LoadOrStore(key, true); twice {
					t.Error("a key was given away twice")
				}
			}
		})
	}
	group.Wait()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		keys.mu.Lock()
		enough, most := len(keys.keys), !keys.refilling
		keys.mu.Unlock()
		if enough > stock {
			t.Fatalf("there are %d keys in stock", enough)
		}
		if most && enough >= stock/2 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there are %d keys in stock", enough)
		}
	}
}
