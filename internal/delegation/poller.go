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

// When an owner withdraws a permission, the certificate must be out of service within five seconds. All of these
// count.
const (
	period         = time.Second            // between two questions
	requestTimeout = 2 * time.Second        // of one request; one question takes up to seven requests
	doubtPeriod    = 250 * time.Millisecond // while a refusal is not confirmed
	doubtLimit     = 1500 * time.Millisecond
	// grace is how long the certificate stays in service after that, so that the generated one can take its place. Other
	// replicas may notice later, and only the leading one makes a generated certificate.
	grace = 1500 * time.Millisecond
)

// doubtLimitOnceReady takes the place of doubtLimit when the API server used to respond to the agent's question whether
// it is ready, and now refuses it. Probably the API server has just started and not loaded RBAC yet, which may take
// seconds. That two permissions were withdrawn at the same time is less likely.
const doubtLimitOnceReady = 30 * time.Second

// firstTimeout bounds how long the first Get waits for a response. Later calls return the known outcome.
const firstTimeout = 10 * time.Second

// PollerOptions are what a Poller needs.
type PollerOptions struct {
	// Client reaches the API server as the agent. It should have no rate limit: a late response is a late withdrawal.
	Client rest.Interface
	// Namespace is the agent's.
	Namespace string
	// Changed is called when a permission came or went; it must not block.
	Changed func(secret types.NamespacedName)
	// Revoke is called when a permission is gone and the grace period is over, and then every second until it comes back.
	Revoke func(secret types.NamespacedName)
	Clock  clock.Clock
}

// Poller finds out whether the agent may use Secrets of other namespaces. It polls for a Secret from the first Get
// until Forget, and is safe for concurrent use.
//
// Every second it asks the API server which delegations there are, and whether RBAC lets the agent read that one
// Secret. A watch would not do: it goes on after the RoleBinding that permitted it is gone, and the kind itself may
// be added and removed. The Poller never reads the Secret.
//
// Without a response nothing changes: an API server that is away withdraws no permission. An API server that has just
// started may respond wrongly; see confirmed.
type Poller struct {
	ctx     context.Context //nolint:containedctx // of the questions, which go on after the call that started them
	options PollerOptions

	mu      sync.Mutex
	secrets map[types.NamespacedName]*polled
}

// NewPoller returns a Poller that follows nothing yet. Its questions end with ctx.
func NewPoller(ctx context.Context, options PollerOptions) *Poller {
	return &Poller{ctx: ctx, options: options, secrets: map[types.NamespacedName]*polled{}}
}

// Get says whether the agent may use the Secret. The first Get waits up to ten seconds for a response, and returns an
// error when there is none. A known outcome stays until the API server reports another one.
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

// Forget stops following every Secret for which keep is false.
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

// polled is one followed Secret.
type polled struct {
	options PollerOptions
	secret  types.NamespacedName
	cancel  context.CancelFunc
	known   chan struct{} // closed with the first outcome

	// Of run alone.
	readiness   readiness
	doubtSince  time.Time // when an unconfirmed refusal was first observed; zero for none
	deniedSince time.Time // when a refusal took effect; zero while there is none

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

// ask asks once, and says how long to wait until the next time.
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
			_ = e.ready(ctx) // confirmed handles an error, when it matters
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

// untilNext is the time until the next question. All replicas ask at the same moments, as far as their clocks
// agree. So the leading replica, which has to make the generated certificate, is not the last one to notice.
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
