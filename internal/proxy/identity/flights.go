package identity

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// reviewFlights are the reviews that wait or go on, by what is asked. Equal questions of one asker are one review. It
// ends when the last request that wants to know its answer has ended.
type reviewFlights[T any] struct {
	admission *admission.Admission
	kind      admission.Kind

	mu     sync.Mutex
	flying map[flightKey]*reviewFlight[T]
}

type flightKey struct {
	question [32]byte
	owner    admission.Owner
	member   any
}

type reviewFlight[T any] struct {
	turn   *admission.Place
	cancel context.CancelCauseFunc
	riders int           // requests that want to know; under reviewFlights.mu
	landed chan struct{} // closed when value and err are set
	value  T
	err    error
}

var errNobodyWaits = errors.New("the client has left")

// ask joins a review of the question, or begins one. It does not wait for the answer: wait does. The error is a
// *admission.Full.
func (f *reviewFlights[T]) ask(
	ctx context.Context,
	question [32]byte,
	review func(context.Context) (T, error),
) (*reviewFlight[T], error) {
	who, member := request.From(ctx).Asker()
	key := flightKey{question, who, member}
	if who.User != "" {
		key.owner.Address = "" // one user, wherever from
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	flight, known := f.flying[key]
	if !known {
		turn, err := f.admission.Join(who, admission.Cost{Kind: f.kind, Member: member})
		if err != nil {
			return nil, err
		}
		flight = &reviewFlight[T]{turn: turn, landed: make(chan struct{})}
		life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		flight.cancel = cancel
		if f.flying == nil {
			f.flying = map[flightKey]*reviewFlight[T]{}
		}
		f.flying[key] = flight
		go f.fly(life, key, flight, review)
	}
	flight.riders++
	context.AfterFunc(ctx, func() { f.leave(key, flight) })
	return flight, nil
}

func (f *reviewFlights[T]) fly(
	life context.Context,
	key flightKey,
	flight *reviewFlight[T],
	review func(context.Context) (T, error),
) {
	defer flight.cancel(nil)
	ctx, cancel := context.WithTimeout(life, ReviewTimeout)
	defer cancel()
	defer func() {
		flight.turn.Leave()
		f.mu.Lock()
		f.forget(key, flight)
		f.mu.Unlock()
		close(flight.landed)
	}()
	if err := flight.turn.Wait(ctx); err != nil {
		flight.err = &request.UnavailableError{Doing: "waiting for a turn to ask the API server", Cause: err}
		return
	}
	flight.value, flight.err = review(ctx)
}

// leave ends a flight that no request waits for any more.
func (f *reviewFlights[T]) leave(key flightKey, flight *reviewFlight[T]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	flight.riders--
	if flight.riders == 0 {
		f.forget(key, flight)
		flight.cancel(errNobodyWaits)
	}
}

// forget lets no request join the flight any more. The caller holds f.mu.
func (f *reviewFlights[T]) forget(key flightKey, flight *reviewFlight[T]) {
	if f.flying[key] == flight {
		delete(f.flying, key)
	}
}

// wait returns the answer, or an error when ctx ends before.
func (f *reviewFlight[T]) wait(ctx context.Context) (T, error) {
	if state := request.From(ctx); state != nil {
		state.Holds.Looked()
	}
	select {
	case <-f.landed:
		return f.value, f.err
	case <-ctx.Done():
		var none T
		return none, &request.UnavailableError{Doing: "waiting for the API server's decision", Cause: ctx.Err()}
	}
}

// ReviewCounts counts the use of one kind of review. The zero value is ready.
type ReviewCounts struct {
	Hits, Misses    atomic.Int64 // questions
	Yes, No, Failed atomic.Int64 // reviews
}

// answered counts one review.
func (c *ReviewCounts) answered(yes bool, err error) {
	switch {
	case err != nil:
		c.Failed.Add(1)
	case yes:
		c.Yes.Add(1)
	default:
		c.No.Add(1)
	}
}
