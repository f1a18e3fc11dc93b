package authenticators

import (
	"context"
	"fmt"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
)

// loadPatience is how long a replica that starts may wait for authenticators that do not respond. It is the time after
// which an evaluation gives up on a dead address.
const loadPatience = 10 * time.Second

// loading is what Loaded records from one call to the next.
type loading struct {
	done  bool
	since time.Time // of the first call that could list the objects
}

// Loaded returns nil once every authenticator of the kind has been evaluated, and names one that has not been. Until
// then, a login at this replica could be told that its authenticator does not exist. After loadPatience it returns nil
// in any case: an authenticator that is away must not keep out the users of the others. Once nil, it stays nil.
func (r *Reconciler) Loaded(ctx context.Context) error {
	r.mu.Lock()
	done := r.loading.done
	r.mu.Unlock()
	if done {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second) // while the informer is not synced, it waits
	defer cancel()
	requests, err := r.list(ctx)
	if err != nil {
		return fmt.Errorf("listing each %s: %w", r.Kind.Name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Clock.Now()
	if r.loading.since.IsZero() {
		r.loading.since = now
	}
	for _, request := range requests {
		if _, evaluated := r.verdicts[request.Name]; evaluated {
			continue
		}
		problem := fmt.Errorf("%s %q has not been checked yet", r.Kind.Name, request.Name)
		if now.Sub(r.loading.since) < loadPatience {
			return problem
		}
		logs.Warn(ctx, "Became ready before all authenticators loaded", "problem", problem.Error())
		break
	}
	r.loading.done = true
	return nil
}
