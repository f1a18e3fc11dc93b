package admission

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// Owner is whose something is.
type Owner struct {
	// Address is the client's, without a port.
	Address string
	// User is the name of the authenticated user, empty as long as there is none. Anonymous users are none.
	User string
}

// IsStranger is true as long as nobody has authenticated.
func (o Owner) IsStranger() bool { return o.User == "" }

// key is what is the same for everything that belongs to one owner.
func (o Owner) key() Owner {
	if o.User != "" {
		return Owner{User: o.User}
	}
	return o
}

// Cost is what a client wants.
type Cost struct {
	Kind Kind
	// Bytes is how much memory it takes, and Leaves how many eighths of what there is have to stay free.
	Bytes, Leaves int64
	// Seats is how much work it is, 1 when it is zero. Member tells apart those of one owner, who take turns as well, such
	// as the connections of an address; it is comparable.
	Seats  int
	Member any
	// Yields is true for what gets fewer seats when others have come within a second than its owner gets alone.
	Yields bool
}

// Full is the error for what does not fit. It is temporary.
type Full struct {
	Kind Kind
	// Own is true when the client itself has too much, or strangers have too much of this kind. It is false when all
	// clients together have too much.
	Own bool
}

// Error implements error.
func (e *Full) Error() string {
	if e.Own {
		return fmt.Sprintf("too many %s at a time: this client has its share", e.Kind)
	}
	return fmt.Sprintf("too many %s at a time: there is no memory for more", e.Kind)
}

// Unavailable tells other packages that nothing was decided.
func (e *Full) Unavailable() bool { return true }

// Admission knows what all clients have. It is safe for concurrent use.
type Admission struct {
	limits  Limits
	queues  [numKinds]*queue
	refused [numKinds]atomic.Int64
	begun   [numKinds]atomic.Int64
	debts   ledger

	mu        sync.Mutex
	held      map[Owner]*[numKinds]int64 // bytes, by Owner.key; without entries that are all zero
	of        [numKinds]int64
	users     int64
	strangers int64
	ofThem    [numKinds]int64 // of strangers
}

// New returns an admission of which nothing is taken.
func New(limits Limits) *Admission {
	a := &Admission{limits: limits, held: map[Owner]*[numKinds]int64{}}
	for kind := Unread; kind < numKinds; kind++ {
		a.queues[kind] = newQueue(limits.rows[kind])
	}
	return a
}

// Place is what an owner has got, until Leave. A nil Place is nothing.
type Place struct {
	admission *Admission
	kind      Kind
	bytes     int64
	ticket    *ticket // nil for kinds without turns

	owner Owner // under Admission.mu
	left  bool  // under Admission.mu
}

// Enter decides whether an owner gets what it wants. It waits until it is its turn, if the kind has turns. The error is a
// *Full, or the cause of the end of ctx.
func (a *Admission) Enter(ctx context.Context, who Owner, what Cost) (*Place, error) {
	place, err := a.Join(who, what)
	if err != nil {
		return nil, err
	}
	if err := place.Wait(ctx); err != nil {
		place.Leave()
		return nil, err
	}
	return place, nil
}

// Join is Enter without the wait, which is left to Place.Wait.
func (a *Admission) Join(who Owner, what Cost) (*Place, error) {
	place := &Place{admission: a, kind: what.Kind, owner: who}
	if what.Bytes > 0 {
		if err := place.Grow(what.Bytes, what.Leaves); err != nil {
			return nil, err
		}
	}
	if queue := a.queues[what.Kind]; queue != nil {
		if place.ticket = queue.join(who, what); place.ticket == nil {
			place.Leave()
			a.refused[what.Kind].Add(1)
			return nil, &Full{Kind: what.Kind, Own: true}
		}
	}
	a.begun[what.Kind].Add(1)
	return place, nil
}

// full returns nil when n more bytes fit, and so many eighths stay free.
func (a *Admission) full(who Owner, kind Kind, n, leaves int64) *Full {
	row, part := a.limits.rows[kind], func(most int64) int64 { return most / 8 * (8 - leaves) }
	if who.IsStranger() {
		if row.strangers > 0 && a.ofThem[kind]+n > row.strangers {
			return &Full{Kind: kind, Own: true}
		}
		if a.strangers+n > part(a.limits.strangers) {
			return &Full{Kind: kind}
		}
		return nil
	}
	if row.memory > 0 && a.holds(who, kind)+n > part(row.memory) {
		return &Full{Kind: kind, Own: true}
	}
	most := a.limits.users - a.limits.users/modestPart
	if mine := a.total(who) + n; mine <= a.limits.users/littlePart {
		// Each of those who hold little gets a part of what is still free, so that something is left for the next one.
		most = a.limits.users - modestPart*mine
	}
	if a.users+n > part(most) {
		return &Full{Kind: kind}
	}
	return nil
}

func (a *Admission) holds(who Owner, kind Kind) int64 {
	if held := a.held[who.key()]; held != nil {
		return held[kind]
	}
	return 0
}

func (a *Admission) total(who Owner) (sum int64) {
	if held := a.held[who.key()]; held != nil {
		for _, n := range held {
			sum += n
		}
	}
	return sum
}

func (a *Admission) add(who Owner, kind Kind, n int64) {
	key := who.key()
	held := a.held[key]
	if held == nil {
		held = new([numKinds]int64)
		a.held[key] = held
	}
	held[kind] += n
	if *held == ([numKinds]int64{}) {
		delete(a.held, key)
	}
	a.of[kind] += n
	if who.IsStranger() {
		a.strangers += n
		a.ofThem[kind] += n
	} else {
		a.users += n
	}
}

// Begun is true when it is the turn of the place.
func (p *Place) Begun() bool {
	if p == nil || p.ticket == nil || p.ticket.begin == nil {
		return true
	}
	select {
	case <-p.ticket.begin:
		return true
	default:
		return false
	}
}

// Wait returns when it is the turn of the place, or with the cause when ctx ends before. Leave is to be called in any
// case.
//
// Go runs a goroutine that was just woken before those that are ready. With one processor, what clients without a user
// have computed would pass from one to the next before any user is served, so whoever waited yields first.
func (p *Place) Wait(ctx context.Context) error {
	if p.Begun() {
		return nil
	}
	select {
	case <-p.ticket.begin:
		if p.kind.computes() {
			runtime.Gosched()
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Move gives the memory of the place to another owner: a client whose user is known now. When that one has no room, it
// returns a *Full and changes nothing. A place with a turn keeps it.
func (p *Place) Move(to Owner) error {
	if p == nil {
		return nil
	}
	a := p.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.left || p.owner.key() == to.key() {
		return nil
	}
	if full := a.full(to, p.kind, p.bytes, 0); full != nil {
		a.refused[p.kind].Add(1)
		return full
	}
	a.add(p.owner, p.kind, -p.bytes)
	a.add(to, p.kind, p.bytes)
	p.owner = to
	return nil
}

// Grow has the place hold at least so many bytes. When they do not fit, or do not leave so many eighths free, it
// returns a *Full and changes nothing.
func (p *Place) Grow(bytes, leaves int64) error {
	a := p.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	n := bytes - p.bytes
	if p.left || n <= 0 {
		return nil
	}
	if full := a.full(p.owner, p.kind, n, leaves); full != nil {
		if leaves == 0 {
			a.refused[p.kind].Add(1)
		}
		return full
	}
	a.add(p.owner, p.kind, n)
	p.bytes = bytes
	return nil
}

// Leave gives everything back. A second call does nothing.
func (p *Place) Leave() {
	if p == nil {
		return
	}
	if p.ticket != nil {
		p.ticket.leave()
	}
	if p.ticket != nil && p.bytes == 0 {
		return
	}
	a := p.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	if !p.left {
		p.left = true
		a.add(p.owner, p.kind, -p.bytes)
	}
}

// Usage is what is taken of one kind.
type Usage struct {
	Kind Kind
	// Bytes are those held; zero for kinds that take none.
	Bytes int64
	// Taken are seats, and Waiting the places without.
	Taken, Waiting int
	// Begun and Refused count places that were given and refused.
	Begun, Refused int64
}

// Usage returns what is taken of each kind.
func (a *Admission) Usage() []Usage {
	all := make([]Usage, numKinds)
	a.mu.Lock()
	for kind := range numKinds {
		all[kind] = Usage{
			Kind: kind, Bytes: a.of[kind], Begun: a.begun[kind].Load(), Refused: a.refused[kind].Load(),
		}
	}
	a.mu.Unlock()
	for kind, queue := range a.queues {
		if queue != nil {
			queue.mu.Lock()
			all[kind].Taken, all[kind].Waiting = queue.taken, queue.waiting
			queue.mu.Unlock()
		}
	}
	return all
}

// Memory is what users and strangers hold, of how much, in bytes.
type Memory struct{ Users, MostUsers, Strangers, MostStrangers int64 }

// Memory returns what is held now.
func (a *Admission) Memory() Memory {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Memory{a.users, a.limits.users, a.strangers, a.limits.strangers}
}

// Total returns how many bytes an owner holds.
func (a *Admission) Total(who Owner) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total(who)
}

// HeldBy returns how many bytes an owner holds of a kind.
func (a *Admission) HeldBy(who Owner, kind Kind) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.holds(who, kind)
}
