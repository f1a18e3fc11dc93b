// Package fairqueue bounds how much work goes on at a time, and shares the slots fairly among the owners of the
// work.
//
// Work belongs to an owner, such as a user or an address. Owners take turns, however much work each of them has
// waiting: a thousand requests of one user do not delay the single request of another. Within an owner, members take
// turns in the same way, such as the connections from one address.
package fairqueue

import (
	"context"
	"slices"
	"sync"
)

// Owner says to whom work belongs.
type Owner struct {
	// Name is the user name or the address.
	Name string
	// Member tells apart those who share the name. It is comparable.
	Member any
}

// Limits are the bounds of a queue. Zero means no bound.
type Limits struct {
	// Slots is how much work runs at a time.
	Slots int
	// MaxSlotsPerOwner is how many slots one owner may have, all of its members together.
	MaxSlotsPerOwner int
	// MaxSlotsPerMember is how many slots one member may have, so that its long-running work leaves slots to others.
	MaxSlotsPerMember int
	// MaxPerMember is how much work of one member may be in the queue, running and waiting together.
	MaxPerMember int
	// MaxWaiting is how much work may wait. A member with nothing in the queue may exceed it with one piece of work, so
	// that other members cannot lock it out.
	MaxWaiting int
}

// Queue is a number of slots and what waits for them. It is safe for concurrent use.
type Queue struct {
	limits Limits

	mu      sync.Mutex
	running int
	waiting int
	owners  map[string]*owner
	// turns are the owners for whom something waits. The first is the next to get a slot.
	turns []*owner
	// spare are owners that have left the queue, to be used again: most requests find a free slot, and must cost little.
	spare []*owner
}

// maxSpare bounds what is kept for later.
const maxSpare = 64

// owner holds the state of an Owner that has work in the queue.
type owner struct {
	name    string
	members map[any]*member
	turns   []*member // those for whom something waits, the next one first
	running int
	spare   *member // as Queue.spare
}

// member holds the state of a member that has work in the queue.
type member struct {
	key     any
	held    int
	running int
	waiting []*Ticket // in the order in which they came
}

// Ticket is a piece of work: first it has a place in the queue, and later a slot.
type Ticket struct {
	queue  *Queue
	owner  *owner
	member *member
	begin  chan struct{} // closed when the work may begin; nil when it could begin at once

	first       bool
	begun, done bool // under queue.mu
}

// New returns an empty queue.
func New(limits Limits) *Queue {
	return &Queue{limits: limits, owners: map[string]*owner{}}
}

// Join takes a slot if one is free, and a place in the queue if none is. It does not wait. It returns nil when a
// bound is reached.
func (q *Queue) Join(who Owner) *Ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.join(who)
}

// JoinSpare takes a slot for work that can be left out. It returns nil unless less than half of the slots are taken,
// nothing waits, and the work can begin at once. So such work leaves slots to all other work.
func (q *Queue) JoinSpare(who Owner) *Ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting > 0 || q.limits.Slots > 0 && 2*q.running >= q.limits.Slots {
		return nil
	}
	t := q.join(who)
	if t != nil && !t.begun {
		q.done(t)
		return nil
	}
	return t
}

// join is Join. The caller holds q.mu.
func (q *Queue) join(who Owner) *Ticket {
	o := q.owners[who.Name]
	var m *member
	if o != nil {
		m = o.members[who.Member]
	}
	if m != nil &&
		(q.limits.MaxPerMember > 0 && m.held >= q.limits.MaxPerMember || q.limits.MaxWaiting > 0 && q.waiting >= q.limits.MaxWaiting) {
		return nil
	}
	if o == nil {
		o = q.newOwner()
		o.name = who.Name
		q.owners[who.Name] = o
	}
	if m == nil {
		m = o.newMember()
		m.key = who.Member
		o.members[who.Member] = m
	}
	m.held++
	t := &Ticket{queue: q, owner: o, member: m, first: m.held == 1}
	if q.waiting == 0 && q.free() && q.mayBegin(o) && q.mayRun(m) {
		q.start(t)
		return t
	}
	t.begin = make(chan struct{})
	q.wait(t)
	q.dispatch()
	return t
}

func (q *Queue) newOwner() *owner {
	last := len(q.spare) - 1
	if last < 0 {
		return &owner{members: map[any]*member{}}
	}
	o := q.spare[last]
	q.spare = q.spare[:last]
	return o
}

func (o *owner) newMember() *member {
	if m := o.spare; m != nil {
		o.spare = nil
		return m
	}
	return &member{}
}

// free is true when there is a slot.
func (q *Queue) free() bool { return q.limits.Slots == 0 || q.running < q.limits.Slots }

// mayBegin is true when the owner may have one more slot.
func (q *Queue) mayBegin(o *owner) bool {
	return q.limits.MaxSlotsPerOwner == 0 || o.running < q.limits.MaxSlotsPerOwner
}

// mayRun is true when the member may have one more slot.
func (q *Queue) mayRun(m *member) bool {
	return q.limits.MaxSlotsPerMember == 0 || m.running < q.limits.MaxSlotsPerMember
}

func (q *Queue) start(t *Ticket) {
	q.running++
	t.owner.running++
	t.member.running++
	t.begun = true
}

func (q *Queue) wait(t *Ticket) {
	q.waiting++
	if len(t.owner.turns) == 0 {
		q.turns = append(q.turns, t.owner)
	}
	if len(t.member.waiting) == 0 {
		t.owner.turns = append(t.owner.turns, t.member)
	}
	t.member.waiting = append(t.member.waiting, t)
}

// dispatch gives free slots to the owners and members whose turn it is.
func (q *Queue) dispatch() {
	for i := 0; i < len(q.turns) && q.free(); {
		o := q.turns[i]
		j := -1
		if q.mayBegin(o) {
			j = slices.IndexFunc(o.turns, q.mayRun)
		}
		if j < 0 {
			i++ // it keeps its place for when it has fewer
			continue
		}
		m := o.turns[j]
		t := m.waiting[0]
		m.waiting = m.waiting[1:]
		o.turns = slices.Delete(o.turns, j, j+1)
		if len(m.waiting) > 0 {
			o.turns = append(o.turns, m)
		}
		q.turns = slices.Delete(q.turns, i, i+1)
		if len(o.turns) > 0 {
			q.turns = append(q.turns, o)
		}
		q.waiting--
		q.start(t)
		close(t.begin)
	}
}

// First is true when the member had nothing else in the queue.
func (t *Ticket) First() bool { return t.first }

// Begun is true when the ticket has a slot.
func (t *Ticket) Begun() bool {
	if t.begin == nil {
		return true
	}
	select {
	case <-t.begin:
		return true
	default:
		return false
	}
}

// Slot returns a channel that is closed when the ticket has a slot, and nil when it had one at once.
func (t *Ticket) Slot() <-chan struct{} { return t.begin }

// Wait returns when the ticket has a slot, or with an error when ctx ends before. Done is still to be called.
func (t *Ticket) Wait(ctx context.Context) error {
	if t.Begun() {
		return nil
	}
	select {
	case <-t.begin:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Done gives the slot back, or leaves the queue. A second call does nothing.
func (t *Ticket) Done() {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.queue.done(t)
}

// done is Ticket.Done. The caller holds q.mu.
func (q *Queue) done(t *Ticket) {
	if t.done {
		return
	}
	t.done = true
	if t.begun {
		q.running--
		t.owner.running--
		t.member.running--
	} else {
		q.leave(t)
	}
	t.member.held--
	if t.member.held == 0 { // no other ticket knows the member
		delete(t.owner.members, t.member.key)
		t.member.key, t.owner.spare = nil, t.member
	}
	if len(t.owner.members) == 0 {
		delete(q.owners, t.owner.name)
		if len(q.spare) < maxSpare {
			q.spare = append(q.spare, t.owner)
		}
	}
	q.dispatch()
}

func (q *Queue) leave(t *Ticket) {
	q.waiting--
	is := func(one *Ticket) bool { return one == t }
	t.member.waiting = slices.DeleteFunc(t.member.waiting, is)
	if len(t.member.waiting) > 0 {
		return
	}
	t.owner.turns = slices.DeleteFunc(t.owner.turns, func(m *member) bool { return m == t.member })
	if len(t.owner.turns) == 0 {
		q.turns = slices.DeleteFunc(q.turns, func(o *owner) bool { return o == t.owner })
	}
}

// Running returns how much work has a slot.
func (q *Queue) Running() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running
}

// Waiting returns how much work waits for a slot.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}
