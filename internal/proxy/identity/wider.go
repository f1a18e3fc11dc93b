package identity

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// A SubjectAccessReview without a name asks about all objects of a resource, and one without a namespace about all
// namespaces. A yes to such a wider question is a yes to every question that is a part of it. So a client that reads a
// thousand objects by name needs a few reviews. The wider question is asked when a few of its parts were allowed and
// another one is asked for, before it and in its turn. A no, or no answer, changes nothing.

const (
	// partsBeforeWider is how many parts of a wider question have to be allowed before it is asked. Most clients ask for
	// less, and it would be a review in vain.
	partsBeforeWider = 3
	// maxWider is about how many wider questions something is remembered.
	maxWider = 8192
	// widerRetry is how long a wider question is not asked again after it was not allowed.
	widerRetry = 30 * time.Second
	// widerTimeout is how long a part waits for the answer to the wider question.
	widerTimeout = 2 * time.Second
)

// interest is what is remembered about a wider question.
type interest struct {
	parts        int         // that were allowed since it was asked for the last time
	last         questionKey // one of them
	asked        bool        // a short time ago
	contradicted bool        // a part was denied a short time ago: so not everything is allowed, whatever is answered
}

// interest returns what is remembered. The caller holds r.widening.
func (r *AccessReviewer) interest(wider questionKey) interest {
	found, _ := r.interests.Get(wider)
	known, _ := found.(interest)
	return known
}

// askWider asks the question that is wider than q if there is one worth asking. It returns the answer to q, if that is known
// then.
func (r *AccessReviewer) askWider(ctx context.Context, q *question) (decision, bool) {
	wider := r.worthAsking(q)
	if wider == nil {
		return decision{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, widerTimeout)
	defer cancel()
	_, _ = r.review(ctx, wider) // the answer is kept, and an error has been counted
	return r.known(q)
}

// worthAsking returns the question that is wider than q and worth asking now, or nil.
func (r *AccessReviewer) worthAsking(q *question) *question {
	if !q.mayWiden {
		return nil
	}
	r.widening.Lock()
	defer r.widening.Unlock()
	for i := len(q.keys) - 1; i > 0; i-- {
		if known := r.interest(q.keys[i]); known.parts >= partsBeforeWider && known.last != q.keys[i-1] {
			r.interests.Add(q.keys[i], interest{asked: true}, widerRetry)
			return q.wider(i)
		}
	}
	return nil
}

// keep remembers the answer to a question, and what it says about wider ones.
func (r *AccessReviewer) keep(q *question, answer decision, ttl time.Duration) {
	r.widening.Lock()
	defer r.widening.Unlock()
	allowed := answer.verdict == authorizer.DecisionAllow
	if allowed {
		known := r.interest(q.keys[0])
		answer.alone = known.contradicted
		if known.asked { // and again by the first part after this answer
			r.interests.Add(q.keys[0], interest{parts: partsBeforeWider}, 2*r.allowTTL)
		}
	}
	switch {
	case allowed && rememberedByAsker(q.verb):
	case q.spec.User == user.Anonymous:
		r.apart.Add(q.keys[0], answer, ttl)
	default:
		r.kept.Add(q.keys[0], answer, ttl)
	}
	if !q.mayWiden {
		return
	}
	for i, wider := range q.keys[1:] {
		if !allowed {
			r.interests.Add(wider, interest{contradicted: true}, widerRetry)
			r.kept.Remove(wider)
			continue
		}
		known := r.interest(wider)
		if part := q.keys[i]; !known.asked && !known.contradicted && known.parts < partsBeforeWider && known.last != part {
			r.interests.Add(wider, interest{parts: known.parts + 1, last: part}, r.allowTTL)
		}
	}
}
