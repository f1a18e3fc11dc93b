package identity

import (
	"context"
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// ReviewTimeout is how long the API server may take to answer a review.
const ReviewTimeout = 10 * time.Second

// PostReview asks the API server for one review.
type PostReview func(ctx context.Context, review, result runtime.Object) error

// NewPostReview returns a PostReview that asks once. client-go would by itself ask again when the API server says that
// it is busy, and sleep in between for as long as it is told to; the client is told instead.
func NewPostReview(client rest.Interface, resource string) PostReview {
	return func(ctx context.Context, review, result runtime.Object) error {
		return client.Post().Resource(resource).MaxRetries(0).Body(review).Do(ctx).Into(result)
	}
}

// ReviewCounts counts the use of one kind of review. The zero value is ready.
type ReviewCounts struct {
	Yes, No, Failed atomic.Int64
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

// questionKey tells questions apart: two have the same key only if they ask the same.
type questionKey [sha256.Size]byte

// reviews are the questions of one kind that the API server is asked, and its responses, which are kept for a short
// time. Equal questions of one asker that come at the same time cause one review.
type reviews[T any] struct {
	post  PostReview
	clock clock.PassiveClock
	flow  *flowcontrol.Controller
	kind  flowcontrol.Resource
	kept  *cache.LRUExpireCache // T by questionKey
	// apart are the responses that unauthenticated clients can have as many of as they like. A flood of these makes the
	// API server be asked about no user again.
	apart  *cache.LRUExpireCache
	Counts ReviewCounts

	mu     sync.Mutex
	flying map[flightKey]*flight[T]
}

// flight is a review that waits or goes on, in the goroutine of the request that asked first.
type flight[T any] struct {
	landed chan struct{} // closed when the rest is set
	over   bool          // false when the client has left: whoever else wants to know asks again
	answer T
	err    error
}

type flightKey struct {
	question questionKey
	flow     flowcontrol.Flow
	subFlow  any
}

func newReviews[T any](
	post PostReview, turns *flowcontrol.Controller, kind flowcontrol.Resource, clk clock.PassiveClock, kept, apart int,
) reviews[T] {
	return reviews[T]{
		post: post, clock: clk, flow: turns, kind: kind, flying: map[flightKey]*flight[T]{},
		kept:  cache.NewLRUExpireCacheWithClock(kept, clk),
		apart: cache.NewLRUExpireCacheWithClock(apart, clk),
	}
}

// get returns the response to a question that was reviewed recently.
func (r *reviews[T]) get(key questionKey) (answer T, ok bool) {
	found, ok := r.kept.Get(key)
	if !ok {
		found, ok = r.apart.Get(key)
	}
	if ok {
		answer = found.(T)
	}
	return answer, ok
}

// ask returns what is known, or else the response of a review, which it joins or begins. The error is a
// *flowcontrol.Full, or a *request.UnavailableError when ctx ends before, or that of the review.
func (r *reviews[T]) ask(
	ctx context.Context, question questionKey, review func(context.Context) (T, error),
) (answer T, err error) {
	if answer, ok := r.get(question); ok {
		return answer, nil
	}
	limited, cancel := context.WithTimeout(ctx, ReviewTimeout)
	defer cancel()
	who, subFlow := request.From(ctx).Asker()
	key := flightKey{question, who, subFlow}
	if who.User != "" {
		key.flow.Address = "" // one user, wherever from
	}
	own := &flight[T]{landed: make(chan struct{})}
	for {
		r.mu.Lock()
		other, flies := r.flying[key]
		if !flies {
			r.flying[key] = own
		}
		r.mu.Unlock()
		if !flies {
			break
		}
		looked(ctx)
		select {
		case <-other.landed:
			if other.over {
				return other.answer, other.err
			}
		case <-limited.Done():
			err := &request.UnavailableError{Doing: "waiting for the API server's decision", Cause: limited.Err()}
			return answer, err
		}
	}
	defer func() {
		r.mu.Lock()
		delete(r.flying, key)
		r.mu.Unlock()
		close(own.landed)
	}()
	turn, err := acquireSeats(limited, r.flow, r.kind, "waiting for a turn to ask the API server")
	if err == nil {
		defer turn.Release()
		if known, ok := r.get(question); ok { // it was answered in between
			own.answer = known
		} else {
			own.answer, err = review(limited)
		}
	}
	own.err, own.over = err, ctx.Err() == nil
	return own.answer, own.err
}

// acquireSeats waits until it is the request's turn for work of this kind. The error is a *flowcontrol.Full, or a
// *request.UnavailableError when ctx ends before.
func acquireSeats(
	ctx context.Context, a *flowcontrol.Controller, kind flowcontrol.Resource, doing string,
) (*flowcontrol.Permit, error) {
	who, subFlow := request.From(ctx).Asker()
	cost := flowcontrol.Cost{Resource: kind, SubFlow: subFlow}
	if kind == flowcontrol.AccessReview && who.Unauthenticated() {
		cost.Seats = flowcontrol.UnauthenticatedReview
	}
	turn, err := a.Enqueue(who, cost)
	if err != nil {
		return nil, err
	}
	looked(ctx)
	if err := turn.Wait(ctx); err != nil {
		turn.Release()
		return nil, &request.UnavailableError{Doing: doing, Cause: err}
	}
	return turn, nil
}

// looked ends the turn in which an unauthenticated client's request is looked at, as it waits for something else now.
func looked(ctx context.Context) {
	if state := request.From(ctx); state != nil {
		state.Holds.PreAuthDone()
	}
}
