package delegation

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// When an owner withdraws a permission, the certificate must be out of service within five seconds, the sum of these.
const (
	period         = time.Second            // between two queries
	requestTimeout = 2 * time.Second        // of one request; a query has up to seven
	doubtPeriod    = 250 * time.Millisecond // between queries while a refusal is unconfirmed
	doubtLimit     = 1500 * time.Millisecond
	// grace is how long the certificate stays in service after that, so that the leader can replace it by a generated
	// one and all replicas can switch.
	grace = 1500 * time.Millisecond
)

// doubtLimitOnceReady replaces doubtLimit if the API server used to permit /readyz and now denies it. It has probably
// just started and not loaded RBAC yet, which may take seconds. The simultaneous withdrawal of both permissions is less
// likely.
const doubtLimitOnceReady = 30 * time.Second

// firstTimeout limits how long the first Get waits for a response. Later calls return the known outcome.
const firstTimeout = 10 * time.Second

// PollerOptions are the options of NewPoller.
type PollerOptions struct {
	// Client accesses the API server as the agent. It should not be rate-limited: that would delay a withdrawal.
	Client rest.Interface
	// Namespace is the agent's.
	Namespace string
	// Changed is called when an outcome changes; it must not block.
	Changed func(secret types.NamespacedName)
	// Revoke is called once a permission is withdrawn and the grace period is over, and then every second until it
	// returns.
	Revoke func(secret types.NamespacedName)
	Clock  clock.Clock
}

// Poller finds out whether the agent may use Secrets of other namespaces. It polls for a Secret from the first Get
// until Forget. It is safe for concurrent use.
//
// Every second it lists the delegations and asks whether RBAC lets the agent read the Secret. A watch is unsuitable: it
// continues after its RoleBinding is deleted, and the CRD can be added and removed. The Poller never reads the Secret.
//
// If there is no response, the outcome stays: an unavailable API server withdraws no permission. An API server that has
// just started may respond wrongly; see confirmed.
type Poller struct {
	ctx     context.Context //nolint:containedctx // of the polling goroutines, which outlive the call that started them
	options PollerOptions

	mu      sync.Mutex
	secrets map[types.NamespacedName]*polled
}

// NewPoller returns a Poller that polls for no Secret yet. It stops when ctx ends.
func NewPoller(ctx context.Context, options PollerOptions) *Poller {
	return &Poller{ctx: ctx, options: options, secrets: map[types.NamespacedName]*polled{}}
}

// Get returns whether the agent may use the Secret. The first Get waits up to ten seconds for a response, and returns
// an error if there is none. Later calls return the last known outcome.
func (p *Poller) Get(ctx context.Context, secret types.NamespacedName) (Outcome, error) {
	e := p.follow(secret)
	ctx, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	select {
	case <-e.known:
		outcome, _ := e.state()
		return outcome, nil
	case <-ctx.Done():
		_, err := e.state()
		if err == nil {
			err = fmt.Errorf("no response from the API server: %w", context.Cause(ctx))
		}
		return "", fmt.Errorf("checking whether Secret %q may be used: %w", secret, err)
	}
}

// Forget stops polling for every Secret for which keep returns false.
func (p *Poller) Forget(keep func(types.NamespacedName) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for secret, e := range p.secrets {
		if !keep(secret) {
			e.cancel()
			delete(p.secrets, secret)
		}
	}
}

func (p *Poller) follow(secret types.NamespacedName) *polled {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, ok := p.secrets[secret]; ok {
		return e
	}
	ctx, cancel := context.WithCancel(p.ctx)
	e := &polled{options: p.options, secret: secret, cancel: cancel, known: make(chan struct{})}
	p.secrets[secret] = e
	go e.run(ctx)
	return e
}

// polled is a Secret for which the Poller polls.
type polled struct {
	options PollerOptions
	secret  types.NamespacedName
	cancel  context.CancelFunc
	known   chan struct{} // closed with the first outcome

	// Only run uses these.
	readiness   readiness
	doubtSince  time.Time // when an unconfirmed refusal was first observed; zero for none
	deniedSince time.Time // when a refusal took effect; zero for none

	mu      sync.Mutex
	outcome Outcome // "" until known
	failure error   // why the latest request failed
}

func (e *polled) state() (Outcome, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.outcome, e.failure
}

func (e *polled) run(ctx context.Context) {
	for {
		pause := e.ask(ctx)
		select {
		case <-ctx.Done():
			return
		case <-e.options.Clock.After(pause):
		}
	}
}

// ask queries once and returns how long to wait until the next query.
func (e *polled) ask(ctx context.Context) time.Duration {
	verdict, err := e.query(ctx)
	if ctx.Err() != nil {
		return period
	}
	doubted := false
	before, _ := e.state()
	switch {
	case err != nil:
		e.doubtSince = time.Time{}
		e.fail(err)
	case verdict.certain || verdict.outcome == before || e.confirmed(ctx, verdict):
		e.doubtSince = time.Time{}
		e.become(before, verdict.outcome)
		if verdict.outcome == Permitted && e.readiness == unasked {
			_ = e.ready(ctx) // confirmed handles an error when it matters
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

// untilNext returns the time until the next query. All replicas query at the same moments, as far as their clocks
// agree, so that the leader, which issues the generated certificate, is not the last to notice.
func untilNext(now time.Time) time.Duration {
	return period - time.Duration(now.UnixNano())%period
}

func (e *polled) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failure = err
}

func (e *polled) become(before, outcome Outcome) {
	e.mu.Lock()
	e.outcome, e.failure = outcome, nil
	e.mu.Unlock()
	if outcome == Permitted {
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
