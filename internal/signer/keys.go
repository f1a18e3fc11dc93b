package signer

import (
	"crypto/ecdsa"
	"sync"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// stock is how many keys are generated in advance: enough for a team that starts work at the same moment.
const stock = 64

// keyStock holds unused keys in memory, so that a login need not wait for key generation. Each is used once. The zero
// value is empty.
type keyStock struct {
	mu        sync.Mutex
	keys      []*ecdsa.PrivateKey
	refilling bool
}

// take returns an unused key.
func (k *keyStock) take() (*ecdsa.PrivateKey, error) {
	k.mu.Lock()
	var key *ecdsa.PrivateKey
	if last := len(k.keys) - 1; last >= 0 {
		key, k.keys[last] = k.keys[last], nil
		k.keys = k.keys[:last]
	}
	low := len(k.keys) < stock/2
	k.mu.Unlock()
	if low {
		k.refill()
	}
	if key != nil {
		return key, nil
	}
	return certs.NewKey()
}

// refill generates keys in the background until there are enough, in one goroutine at a time.
func (k *keyStock) refill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refilling {
		return
	}
	k.refilling = true
	go func() {
		for {
			key, err := certs.NewKey()
			k.mu.Lock()
			if err == nil {
				k.keys = append(k.keys, key)
			}
			if err != nil || len(k.keys) >= stock {
				k.refilling = false
				k.mu.Unlock()
				return // each login then generates its own key and gets the error
			}
			k.mu.Unlock()
		}
	}()
}
