// Package delegationwatch tells the agent whether it may use a Secret of another namespace, from the first time that it asks until it
// forgets the Secret, and takes a certificate out of service whose permission is gone.
//
// It asks the API server every second: which delegations there are, and whether RBAC lets the agent read that one Secret. A watch would not do:
// one that was permitted goes on after the RoleBinding is gone, and the kind itself may come and go. It never asks for the Secret.
//
// No answer changes nothing: an API server that is away withdraws no permission. See confirmed for the answers of one that just starts.
package delegationwatch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
)

// From an owner's change to its effect must not be more than five seconds, all of these together.
const (
	period         = time.Second            // between two questions
	requestTimeout = 2 * time.Second        // of one request; asking comprises up to seven
	doubtPeriod    = 250 * time.Millisecond // while an answer is not confirmed
	doubtLimit     = 1500 * time.Millisecond
	// grace is how long the certificate stays in service until its successor must be there. It covers that other replicas notice
	// later, and that only the leading one makes a generated certificate.
	grace = 1500 * time.Millisecond
)

// doubtLimitOnceReady takes the place of doubtLimit if the API server told this agent before that it is ready, and now does not. That
// it has not loaded the cluster's RBAC yet, which may take it seconds, is likelier than that both permissions were withdrawn at once.
const doubtLimitOnceReady = 30 * time.Second

// firstTimeout bounds how long the first caller waits for an answer. A later one gets it from memory.
const firstTimeout = 10 * time.Second

// Options are what a Watcher needs.
type Options struct {
	// Client reaches the API server as the agent. It should have no rate limit: a late answer is a late withdrawal.
	Client rest.Interface
	// Namespace is the agent's.
	Namespace string
	// Changed is called when a permission came or went; it must not block.
	Changed func(secret types.NamespacedName)
	// Revoke is called, again and again, while a Secret must not be used and whoever was told has had time to stop using it.
	Revoke func(secret types.NamespacedName)
	Clock  clock.Clock
}

// Watcher follows the permissions to use Secrets of other namespaces. It is safe for concurrent use.
type Watcher struct {
	ctx     context.Context //nolint:containedctx // the life of the questions, which outlive the calls that start them
	options Options

	mu      sync.Mutex
	secrets map[types.NamespacedName]*entry
}

// New returns a Watcher that follows nothing yet. All ends with ctx.
func New(ctx context.Context, options Options) *Watcher {
	return &Watcher{ctx: ctx, options: options, secrets: map[types.NamespacedName]*entry{}}
}

// Get says whether the agent may use the Secret. It returns an error when that was not found out within ten seconds, as when the API server
// is away; once known, the answer stays until the API server gives another one.
func (w *Watcher) Get(ctx context.Context, secret types.NamespacedName) (delegation.Outcome, error) {
	e := w.follow(secret)
	ctx, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	select {
	case <-e.known:
		outcome, _ := e.state()
		return outcome, nil
	case <-ctx.Done():
		_, err := e.state()
		if err == nil {
			err = fmt.Errorf("no answer from the API server: %w", context.Cause(ctx))
		}
		return "", fmt.Errorf("finding out whether Secret %q may be used: %w", secret, err)
	}
}

// Forget stops following every Secret for which keep is false.
func (w *Watcher) Forget(keep func(types.NamespacedName) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for secret, e := range w.secrets {
		if !keep(secret) {
			e.cancel()
			delete(w.secrets, secret)
		}
	}
}

func (w *Watcher) follow(secret types.NamespacedName) *entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e, ok := w.secrets[secret]; ok {
		return e
	}
	ctx, cancel := context.WithCancel(w.ctx)
	e := &entry{options: w.options, secret: secret, cancel: cancel, known: make(chan struct{})}
	w.secrets[secret] = e
	go e.run(ctx)
	return e
}

// entry is one followed Secret.
type entry struct {
	options Options
	secret  types.NamespacedName
	cancel  context.CancelFunc
	known   chan struct{} // closed with the first outcome

	// Of run alone.
	readiness   readiness
	doubtSince  time.Time // when a refusal was first seen that is not confirmed yet; zero for none
	deniedSince time.Time // when a refusal took effect; zero while there is none

	mu      sync.Mutex
	outcome delegation.Outcome // "" until known
	failure error              // why the latest question has no answer
}

func (e *entry) state() (delegation.Outcome, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.outcome, e.failure
}

func (e *entry) run(ctx context.Context) {
	for {
		pause := e.ask(ctx)
		select {
		case <-ctx.Done():
			return
		case <-e.options.Clock.After(pause):
		}
	}
}

// ask asks once, and says how long to wait until the next time.
func (e *entry) ask(ctx context.Context) time.Duration {
	answer, err := e.question(ctx)
	if ctx.Err() != nil {
		return period
	}
	doubted := false
	before, _ := e.state()
	switch {
	case err != nil:
		e.doubtSince = time.Time{}
		e.fail(err)
	case answer.certain || answer.outcome == before || e.confirmed(ctx, answer):
		e.doubtSince = time.Time{}
		e.become(before, answer.outcome)
		if answer.outcome == delegation.Permitted && e.readiness == unasked {
			_ = e.ready(ctx) // an error is for confirmed to look at, when it matters
		}
	default:
		doubted = true
	}
	pause := untilNext(e.options.Clock.Now())
	if doubted {
		pause = doubtPeriod
	}
	if !e.deniedSince.IsZero() {
		overdue := e.options.Clock.Since(e.deniedSince) - grace
		if overdue >= 0 {
			e.options.Revoke(e.secret)
		} else {
			pause = min(pause, -overdue)
		}
	}
	return pause
}

// untilNext is the time until the next question. All replicas ask at the same moments, as far as their clocks agree: the leading one, which
// makes the certificate that takes the place of a withdrawn one, is then not the last to notice.
func untilNext(now time.Time) time.Duration {
	return period - time.Duration(now.UnixNano())%period
}

func (e *entry) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failure = err
}

func (e *entry) become(before, outcome delegation.Outcome) {
	e.mu.Lock()
	e.outcome, e.failure = outcome, nil
	e.mu.Unlock()
	if outcome == delegation.Permitted {
		e.deniedSince = time.Time{}
	} else if e.deniedSince.IsZero() {
		e.deniedSince = e.options.Clock.Now()
	}
	switch before {
	case outcome:
	case "":
		close(e.known)
	default:
		e.options.Changed(e.secret)
	}
}
