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

// ReviewTimeout is the timeout of a review.
const ReviewTimeout = 10 * time.Second

// PostReview sends one review to the API server and decodes the result.
type PostReview func(ctx context.Context, review, result runtime.Object) error

// NewPostReview returns a PostReview without retries. By default, client-go would wait for as long as Retry-After says
// and retry; here the client gets the error.
func NewPostReview(client rest.Interface, resource string) PostReview {
	return func(ctx context.Context, review, result runtime.Object) error {
		return client.Post().Resource(resource).MaxRetries(0).Body(review).Do(ctx).Into(result)
	}
}

// ReviewCounts counts the results of one type of review. The zero value is ready to use.
type ReviewCounts struct {
	Yes, No, Failed atomic.Int64
}

func (c *ReviewCounts) count(yes bool, err error) {
	switch {
	case err != nil:
		c.Failed.Add(1)
	case yes:
		c.Yes.Add(1)
	default:
		c.No.Add(1)
	}
}

// questionKey is the cache key of a question.
type questionKey [sha256.Size]byte

// reviews sends reviews of one type to the API server, and caches its decisions for a short time. Equal concurrent
// questions of one flow share one review.
type reviews[T any] struct {
	post  PostReview
	clock clock.PassiveClock
	flow  *flowcontrol.Controller
	kind  flowcontrol.Resource
	kept  *cache.LRUExpireCache // T by questionKey
	// apart caches results that unauthenticated clients can cause in any number. A flood of them does not evict the
	// results of users.
	apart  *cache.LRUExpireCache
	Counts ReviewCounts

	mu     sync.Mutex
	flying map[flightKey]*flight[T]
}

// flight is a pending review, run by the goroutine of the first request that needs it.
type flight[T any] struct {
	landed chan struct{} // closed when the other fields are set
	over   bool          // false when the client disconnected: the other requests then ask again
	result T
	err    error
}

type flightKey struct {
	question questionKey
	flow     flowcontrol.Flow
	subFlow  any
}

func newReviews[T any](
	post PostReview, flow *flowcontrol.Controller, kind flowcontrol.Resource, clk clock.PassiveClock, kept, apart int,
) reviews[T] {
	return reviews[T]{
		post: post, clock: clk, flow: flow, kind: kind, flying: map[flightKey]*flight[T]{},
		kept:  cache.NewLRUExpireCacheWithClock(kept, clk),
		apart: cache.NewLRUExpireCacheWithClock(apart, clk),
	}
}

// get returns the cached result of a question.
func (r *reviews[T]) get(key questionKey) (result T, ok bool) {
	found, ok := r.kept.Get(key)
	if !ok {
		found, ok = r.apart.Get(key)
	}
	if ok {
		result = found.(T)
	}
	return result, ok
}

// ask returns a cached result, or that of a pending or a new review. The error is a *flowcontrol.Full, a
// *request.UnavailableError when ctx ends first, or the error of the review.
func (r *reviews[T]) ask(
	ctx context.Context, question questionKey, review func(context.Context) (T, error),
) (result T, err error) {
	if result, ok := r.get(question); ok {
		return result, nil
	}
	limited, cancel := context.WithTimeout(ctx, ReviewTimeout)
	defer cancel()
	who, subFlow := request.From(ctx).Flow()
	key := flightKey{question, who, subFlow}
	if who.User != "" {
		key.flow.Address = "" // one user, from any address
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
		endPreAuth(ctx)
		select {
		case <-other.landed:
			if other.over {
				return other.result, other.err
			}
		case <-limited.Done():
			err := &request.UnavailableError{Doing: "waiting for the API server's decision", Cause: limited.Err()}
			return result, err
		}
	}
	defer func() {
		r.mu.Lock()
		delete(r.flying, key)
		r.mu.Unlock()
		close(own.landed)
	}()
	permit, err := acquireSeats(limited, r.flow, r.kind, "queuing for a review")
	if err == nil {
		defer permit.Release()
		if known, ok := r.get(question); ok { // it was decided meanwhile
			own.result = known
		} else {
			own.result, err = review(limited)
		}
	}
	own.err, own.over = err, ctx.Err() == nil
	return own.result, own.err
}

// acquireSeats queues the request for seats of a resource. The error is a *flowcontrol.Full, or a
// *request.UnavailableError when ctx ends first.
func acquireSeats(
	ctx context.Context, a *flowcontrol.Controller, resource flowcontrol.Resource, doing string,
) (*flowcontrol.Permit, error) {
	who, subFlow := request.From(ctx).Flow()
	cost := flowcontrol.Cost{Resource: resource, SubFlow: subFlow}
	if resource == flowcontrol.AccessReview && who.Unauthenticated() {
		cost.Seats = flowcontrol.UnauthenticatedReview
	}
	permit, err := a.Enqueue(who, cost)
	if err != nil {
		return nil, err
	}
	endPreAuth(ctx)
	if err := permit.Wait(ctx); err != nil {
		permit.Release()
		return nil, &request.UnavailableError{Doing: doing, Cause: err}
	}
	return permit, nil
}

// endPreAuth releases the pre-authentication seat of a request, because the request now waits.
func endPreAuth(ctx context.Context) {
	if state := request.From(ctx); state != nil {
		state.Holds.PreAuthDone()
	}
}
