package identity

import (
	"context"
	"iter"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// A SubjectAccessReview without a name asks about all objects of a resource, and one without a namespace about all
// namespaces. A yes to such a wider question is a yes to every question that is a part of it. So a client that reads a
// thousand objects by name needs a few reviews. The wider question is asked when a few of its parts were allowed and
// another one is asked for. A no, or no answer, changes nothing.

const (
	// partsBeforeWider is how many parts of a wider question have to be allowed before it is asked. Most clients ask for
	// less, and it would be a review in vain.
	partsBeforeWider = 3
	// maxWider is about how many wider questions something is remembered.
	maxWider = 8192
	// widerRetry is how long a wider question is not asked again after it was not allowed.
	widerRetry = 30 * time.Second
)

// interest is what is remembered about a wider question.
type interest struct {
	stage stage
	// parts is how many parts were allowed, and last is the last one of them. Both are for the stage counting only.
	parts int
	last  questionKey
}

type stage int

const (
	// counting says that some parts of the question were allowed.
	counting stage = iota
	// wanted says that the question is worth asking. The next part that is asked for has it asked.
	wanted
	// settled says that the wider question was asked a short time ago.
	settled
	// contradicted is settled, and a part of the question was denied. So not everything is allowed, whatever is answered.
	contradicted
)

// widerQuestions says which wider questions are worth asking.
type widerQuestions struct {
	mu     sync.Mutex
	known  *cache.LRUExpireCache // interest by key; written under mu
	window time.Duration         // how long parts that were allowed count
}

// worth is true when the wider question is to be asked now, because one more part of it is asked for. Then the caller
// asks. The caller holds w.mu.
func (w *widerQuestions) worth(wider, part questionKey) bool {
	found, _ := w.known.Get(wider)
	known, ok := found.(interest)
	enough := known.stage == wanted || known.parts >= partsBeforeWider && known.last != part
	if !ok || known.stage > wanted || !enough {
		return false
	}
	w.known.Add(wider, interest{stage: settled}, widerRetry)
	return true
}

// allowed remembers that a part of the wider question was allowed. The caller holds w.mu.
func (w *widerQuestions) allowed(wider, part questionKey) {
	found, _ := w.known.Get(wider)
	if known, ok := found.(interest); !ok || known.stage == counting && known.last != part {
		w.known.Add(wider, interest{stage: counting, parts: known.parts + 1, last: part}, w.window)
	}
}

// later has the question asked after all that was not asked now for want of room.
func (w *widerQuestions) later(wider questionKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, _ := w.known.Get(wider)
	if known, ok := found.(interest); ok && known.stage == settled {
		w.known.Add(wider, interest{stage: wanted}, w.window)
	}
}

// worthAsking returns the question that is wider than q and worth asking now, or nil.
func (r *AccessReviewer) worthAsking(q *question) *question {
	if !q.mayWiden {
		return nil
	}
	w := &r.wider
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, answered := r.knownWider(q); answered { // in between
		return nil
	}
	switch {
	case q.allNames != q.everywhere && w.worth(q.everywhere, q.allNames):
		return &question{
			spec: everywhere(q.spec), verb: q.verb, mayWiden: true,
			key: q.everywhere, allNames: q.everywhere, everywhere: q.everywhere,
		}
	case q.key != q.allNames && w.worth(q.allNames, q.key):
		return &question{
			spec: allNames(q.spec), verb: q.verb, mayWiden: true,
			key: q.allNames, allNames: q.allNames, everywhere: q.everywhere,
		}
	}
	return nil
}

// widen asks a wider question than q beside it, if that is worth it and there is room: it neither waits for a slot nor
// takes the last ones.
func (r *AccessReviewer) widen(ctx context.Context, q *question) {
	wider := r.worthAsking(q)
	if wider == nil {
		return
	}
	who, member := request.From(ctx).Asker()
	turn := r.flights.admission.Spare(who, admission.Cost{Kind: admission.AccessReview, Member: member})
	if turn == nil {
		r.wider.later(wider.key)
		return
	}
	// It may take longer than the request because of which it is asked.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ReviewTimeout)
	go func() {
		defer cancel()
		defer turn.Leave()
		_, _ = r.review(ctx, wider) // the answer is in the cache, and an error has been counted
	}()
}

// widenFirst asks the wider question for which there was no room before q, in q's own turn. It returns the answer to q, if
// that is known then.
func (r *AccessReviewer) widenFirst(ctx context.Context, q *question) (decision, bool) {
	wider := r.worthAsking(q)
	if wider == nil {
		return decision{}, false
	}
	_, _ = r.review(ctx, wider) // as in widen
	return r.known(q)
}

// keep remembers the answer to a question, and what it says about wider ones.
func (r *AccessReviewer) keep(q *question, answer decision, answers *cache.LRUExpireCache, ttl time.Duration) {
	w := &r.wider
	w.mu.Lock()
	defer w.mu.Unlock()
	if answer.verdict == authorizer.DecisionAllow {
		found, _ := w.known.Get(q.key)
		known, ok := found.(interest)
		answer.alone = ok && known.stage == contradicted
		if ok && known.stage == settled {
			w.known.Add(q.key, interest{stage: wanted}, r.allowTTL+w.window)
		}
	}
	answers.Add(q.key, answer, ttl)
	if !q.mayWiden {
		return
	}
	for part, wider := range q.widerKeys() {
		if answer.verdict == authorizer.DecisionAllow {
			w.allowed(wider, part)
			continue
		}
		w.known.Add(wider, interest{stage: contradicted}, widerRetry)
		r.cache.Remove(wider)
	}
}

// widerKeys are the wider questions, each after the part of it to which q belongs.
func (q *question) widerKeys() iter.Seq2[questionKey, questionKey] {
	return func(yield func(part, wider questionKey) bool) {
		if q.key != q.allNames && !yield(q.key, q.allNames) {
			return
		}
		if q.allNames != q.everywhere {
			yield(q.allNames, q.everywhere)
		}
	}
}

// knownWider returns the answer to a wider question, if that is yes.
func (r *AccessReviewer) knownWider(q *question) (decision, bool) {
	if !q.mayWiden {
		return decision{}, false
	}
	for _, wider := range q.widerKeys() {
		found, _ := r.cache.Get(wider)
		if known, ok := found.(decision); ok && known.verdict == authorizer.DecisionAllow && !known.alone {
			return known, true
		}
	}
	return decision{}, false
}
