package authenticators

import (
	"context"
	"fmt"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
)

// loadPatience is how long a starting replica waits for authenticators that do not respond. An evaluation gives up on
// an unreachable address after the same time.
const loadPatience = 10 * time.Second

// loading is the state of Loaded between calls.
type loading struct {
	done  bool
	since time.Time // the first call that could list the objects
}

// Loaded returns nil once every authenticator of the kind has been evaluated, else an error that names one. Until then,
// a login at this replica might fail because its authenticator seems not to exist. After loadPatience it returns nil
// anyway, so that an unavailable authenticator does not block the users of others. Once nil, it stays nil.
func (r *Reconciler) Loaded(ctx context.Context) error {
	r.mu.Lock()
	done := r.loading.done
	r.mu.Unlock()
	if done {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second) // List blocks until the informer is synced
	defer cancel()
	requests, err := r.list(ctx)
	if err != nil {
		return fmt.Errorf("listing %ss: %w", r.Kind.Name, err)
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
