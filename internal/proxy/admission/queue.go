package admission

import (
	"slices"
	"sync"
	"time"
)

// queue gives the seats of one kind to owners in turn, and within an owner to its members: a thousand requests of one
// user do not delay the single request of another. Whoever has fewest seats is next, and among equals the one that has
// waited for longest.
type queue struct {
	row row

	mu      sync.Mutex
	taken   int
	queued  int
	waiting int
	owners  map[Owner]*group
	turns   []*group // for which something waits

	last   Owner     // the one that came last, and
	came   time.Time // when
	others time.Time // when another one than that came last
	shared bool      // that was less than a second ago
}

// group is an owner that has something in the queue.
type group struct {
	owner   Owner
	taken   int
	members map[any]*member
	turns   []*member // for which something waits
}

type member struct {
	key     any
	queued  int
	taken   int
	waiting []*ticket // in the order in which they came
}

// ticket is a piece of work in the queue.
type ticket struct {
	queue  *queue
	group  *group
	member *member
	seats  int
	yields bool
	begin  chan struct{} // closed when it has its seats; nil when it had them at once
	begun  bool
	done   bool
}

func newQueue(r row) *queue { return &queue{row: r, owners: map[Owner]*group{}} }

// join returns nil when a bound is reached. It does not wait.
func (q *queue) join(who Owner, what Cost) *ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	who, key := who.key(), what.Member
	q.note(who)
	g := q.owners[who]
	if g == nil {
		g = &group{owner: who, members: map[any]*member{}}
	}
	m := g.members[key]
	if m == nil {
		m = &member{key: key}
	}
	t := &ticket{queue: q, group: g, member: m, seats: max(1, what.Seats), yields: what.Yields}
	now := q.waiting == 0 && q.fits(t)
	switch {
	case now:
	case q.row.refuses,
		q.row.most > 0 && q.queued >= q.row.most,
		m.queued > 0 && q.row.queued > 0 && m.queued >= q.row.queued,
		m.queued > 0 && q.row.waiting > 0 && q.waiting >= q.row.waiting:
		return nil
	}
	q.owners[who], g.members[key] = g, m
	m.queued++
	q.queued++
	if now {
		q.start(t)
		return t
	}
	t.begin = make(chan struct{})
	q.waiting++
	if len(g.turns) == 0 {
		q.turns = append(q.turns, g)
	}
	if len(m.waiting) == 0 {
		g.turns = append(g.turns, m)
	}
	m.waiting = append(m.waiting, t)
	q.dispatch()
	return t
}

// note keeps whether others than this one have come within a second.
func (q *queue) note(who Owner) {
	if q.last != who {
		q.last, q.others = who, q.came
	}
	q.came = time.Now()
	q.shared = q.came.Sub(q.others) < time.Second
}

// fits is true when there are seats for t, and its owner and member may have them.
func (q *queue) fits(t *ticket) bool {
	return within(q.row.seats, q.taken, t.seats) && q.mayHave(t)
}

func (q *queue) mayHave(t *ticket) bool {
	perMember := q.row.perMember
	if t.yields && q.shared {
		perMember = q.row.yielding
	}
	return within(q.row.perOwner, t.group.taken, t.seats) && within(perMember, t.member.taken, t.seats)
}

// within is true when more fits beside what is taken. What is larger than the bound fits alone.
func within(bound, taken, more int) bool { return bound == 0 || taken == 0 || taken+more <= bound }

func (q *queue) start(t *ticket) {
	q.taken += t.seats
	t.group.taken += t.seats
	t.member.taken += t.seats
	t.begun = true
}

// dispatch gives seats to whoever is next. One that needs more than are free has to wait for them, and so do all others:
// otherwise it would wait for ever.
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
			g.turns = append(drop(g.turns, m), m)
		}
		if len(g.turns) > 0 {
			q.turns = append(drop(q.turns, g), g)
		}
		close(t.begin)
	}
}

// next returns the owner and the member whose turn it is, nil when nobody may have more.
func (q *queue) next() (*group, *member) {
	var group *group
	var member *member
	for _, g := range q.turns {
		if group != nil && g.taken >= group.taken {
			continue
		}
		if m := q.nextOf(g); m != nil {
			group, member = g, m
		}
		if group != nil && group.taken == 0 { // nobody has less
			break
		}
	}
	return group, member
}

func (q *queue) nextOf(g *group) *member {
	var next *member
	for _, m := range g.turns {
		if (next == nil || m.taken < next.taken) && q.mayHave(m.waiting[0]) {
			next = m
		}
		if next != nil && next.taken == 0 {
			break
		}
	}
	return next
}

// unwait takes t out of those that wait.
func (q *queue) unwait(t *ticket) {
	q.waiting--
	t.member.waiting = drop(t.member.waiting, t)
	if len(t.member.waiting) == 0 {
		t.group.turns = drop(t.group.turns, t.member)
	}
	if len(t.group.turns) == 0 {
		q.turns = drop(q.turns, t.group)
	}
}

func drop[T comparable](all []T, one T) []T {
	if i := slices.Index(all, one); i >= 0 {
		return slices.Delete(all, i, i+1)
	}
	return all
}

// leave gives the seats back, or the place in the queue. A second call does nothing.
func (t *ticket) leave() {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(t)
}

func (q *queue) remove(t *ticket) {
	if t.done {
		return
	}
	t.done = true
	if t.begun {
		q.taken -= t.seats
		t.group.taken -= t.seats
		t.member.taken -= t.seats
	} else {
		q.unwait(t)
	}
	q.queued--
	if t.member.queued--; t.member.queued == 0 {
		delete(t.group.members, t.member.key)
	}
	if len(t.group.members) == 0 {
		delete(q.owners, t.group.owner)
	}
	q.dispatch()
}
