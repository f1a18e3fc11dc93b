package flowcontrol

import (
	"slices"
	"sync"
	"time"
)

// queue grants the seats of one resource to flows fairly, and within a flow to its sub-flows: a thousand requests of
// one user do not delay the single request of another. The flow with the fewest seats is next; among equals, the one
// that has waited longest.
type queue struct {
	row row

	mu      sync.Mutex
	taken   int
	queued  int
	waiting int
	flows   map[Flow]*flowQueue
	pending []*flowQueue // with queued entries

	last   Flow      // the flow that arrived last
	came   time.Time // when it arrived
	others time.Time // when another flow arrived last
	shared bool      // others was less than a second ago
}

// flowQueue is a flow with entries in the queue.
type flowQueue struct {
	flow     Flow
	taken    int
	subFlows map[any]*subFlowQueue
	pending  []*subFlowQueue // with queued entries
}

type subFlowQueue struct {
	key     any
	queued  int
	taken   int
	waiting []*entry // first in, first out
}

// entry is an operation in the queue.
type entry struct {
	queue        *queue
	flowQueue    *flowQueue
	subFlowQueue *subFlowQueue
	seats        int
	yields       bool
	begin        chan struct{} // closed when it has its seats; nil when it had them at once
	granted      bool
	done         bool
}

func newQueue(r row) *queue { return &queue{row: r, flows: map[Flow]*flowQueue{}} }

// enqueue returns nil when a limit is reached. It does not wait.
func (q *queue) enqueue(who Flow, what Cost) *entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	who, key := who.key(), what.SubFlow
	q.note(who)
	g := q.flows[who]
	if g == nil {
		g = &flowQueue{flow: who, subFlows: map[any]*subFlowQueue{}}
	}
	m := g.subFlows[key]
	if m == nil {
		m = &subFlowQueue{key: key}
	}
	t := &entry{queue: q, flowQueue: g, subFlowQueue: m, seats: max(1, what.Seats), yields: what.Yields}
	now := q.waiting == 0 && q.fits(t)
	switch {
	case now:
	case q.row.refuses,
		q.row.most > 0 && q.queued >= q.row.most,
		m.queued > 0 && q.row.queued > 0 && m.queued >= q.row.queued,
		m.queued > 0 && q.row.waiting > 0 && q.waiting >= q.row.waiting:
		return nil
	}
	q.flows[who], g.subFlows[key] = g, m
	m.queued++
	q.queued++
	if now {
		q.start(t)
		return t
	}
	t.begin = make(chan struct{})
	q.waiting++
	if len(g.pending) == 0 {
		q.pending = append(q.pending, g)
	}
	if len(m.waiting) == 0 {
		g.pending = append(g.pending, m)
	}
	m.waiting = append(m.waiting, t)
	q.dispatch()
	return t
}

// note records whether other flows were active within the last second.
func (q *queue) note(who Flow) {
	if q.last != who {
		q.last, q.others = who, q.came
	}
	q.came = time.Now()
	q.shared = q.came.Sub(q.others) < time.Second
}

// fits is true when the resource, the flow and the sub-flow have free seats for t.
func (q *queue) fits(t *entry) bool {
	return within(q.row.seats, q.taken, t.seats) && q.mayHave(t)
}

func (q *queue) mayHave(t *entry) bool {
	perSubFlow := q.row.perSubFlow
	if t.yields && q.shared {
		perSubFlow = q.row.yielding
	}
	return within(q.row.perFlow, t.flowQueue.taken, t.seats) && within(perSubFlow, t.subFlowQueue.taken, t.seats)
}

// within is true when more fits. An operation larger than the limit fits alone.
func within(bound, taken, more int) bool { return bound == 0 || taken == 0 || taken+more <= bound }

func (q *queue) start(t *entry) {
	q.taken += t.seats
	t.flowQueue.taken += t.seats
	t.subFlowQueue.taken += t.seats
	t.granted = true
}

// dispatch grants seats in order. When the next entry needs more seats than are free, all others wait with it;
// otherwise it might wait forever.
func (q *queue) dispatch() {
	for {
		g, m := q.next()
		if m == nil || !within(q.row.seats, q.taken, m.waiting[0].seats) {
			return
		}
		t := m.waiting[0]
		q.unwait(t)
		q.start(t)
		if len(m.waiting) > 0 { // behind the others
			g.pending = append(drop(g.pending, m), m)
		}
		if len(g.pending) > 0 {
			q.pending = append(drop(q.pending, g), g)
		}
		close(t.begin)
	}
}

// next returns the flow and sub-flow to serve next, or nil when all are at their limits.
func (q *queue) next() (*flowQueue, *subFlowQueue) {
	var flowQueue *flowQueue
	var subFlowQueue *subFlowQueue
	for _, g := range q.pending {
		if flowQueue != nil && g.taken >= flowQueue.taken {
			continue
		}
		if m := q.nextOf(g); m != nil {
			flowQueue, subFlowQueue = g, m
		}
		if flowQueue != nil && flowQueue.taken == 0 { // the minimum
			break
		}
	}
	return flowQueue, subFlowQueue
}

func (q *queue) nextOf(g *flowQueue) *subFlowQueue {
	var next *subFlowQueue
	for _, m := range g.pending {
		if (next == nil || m.taken < next.taken) && q.mayHave(m.waiting[0]) {
			next = m
		}
		if next != nil && next.taken == 0 {
			break
		}
	}
	return next
}

// unwait removes t from the waiting entries.
func (q *queue) unwait(t *entry) {
	q.waiting--
	t.subFlowQueue.waiting = drop(t.subFlowQueue.waiting, t)
	if len(t.subFlowQueue.waiting) == 0 {
		t.flowQueue.pending = drop(t.flowQueue.pending, t.subFlowQueue)
	}
	if len(t.flowQueue.pending) == 0 {
		q.pending = drop(q.pending, t.flowQueue)
	}
}

func drop[T comparable](all []T, one T) []T {
	if i := slices.Index(all, one); i >= 0 {
		return slices.Delete(all, i, i+1)
	}
	return all
}

// release releases the seats, or removes the entry from the queue. A second call does nothing.
func (t *entry) release() {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(t)
}

func (q *queue) remove(t *entry) {
	if t.done {
		return
	}
	t.done = true
	if t.granted {
		q.taken -= t.seats
		t.flowQueue.taken -= t.seats
		t.subFlowQueue.taken -= t.seats
	} else {
		q.unwait(t)
	}
	q.queued--
	if t.subFlowQueue.queued--; t.subFlowQueue.queued == 0 {
		delete(t.flowQueue.subFlows, t.subFlowQueue.key)
	}
	if len(t.flowQueue.subFlows) == 0 {
		delete(q.flows, t.flowQueue.flow)
	}
	q.dispatch()
}
