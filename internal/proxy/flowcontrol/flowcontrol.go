package flowcontrol

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// Flow identifies the client that uses a resource.
type Flow struct {
	// Address is the client's IP address, without the port.
	Address string
	// User is the name of the authenticated user, empty while the client is unauthenticated or anonymous.
	User string
}

// Unauthenticated is true for a flow without a user.
func (o Flow) Unauthenticated() bool { return o.User == "" }

// key returns the flow as a map key: a user is one flow from all addresses.
func (o Flow) key() Flow {
	if o.User != "" {
		return Flow{User: o.User}
	}
	return o
}

// Cost is the resources that an operation needs.
type Cost struct {
	Resource Resource
	// Bytes is the memory, and Leaves how many eighths of the limit must stay free.
	Bytes, Leaves int64
	// Seats is the number of seats; zero means 1. SubFlow identifies a queue within a flow, such as a connection of an
	// address. It must be comparable.
	Seats   int
	SubFlow any
	// Yields is true for work that gets fewer seats if another flow was active within the last second.
	Yields bool
}

// Full is the error when a limit is reached. It is retryable.
type Full struct {
	Resource Resource
	// Own is true for a limit of the client or of all unauthenticated clients, and false for a limit of all clients.
	Own bool
}

// Error implements error.
func (e *Full) Error() string {
	if e.Own {
		return fmt.Sprintf("too many %s at a time: this client is at its limit", e.Resource)
	}
	return fmt.Sprintf("too many %s at a time: no memory is left", e.Resource)
}

// Unavailable marks the error for request.IsUnavailable: nothing was decided.
func (e *Full) Unavailable() bool { return true }

// Controller enforces the limits of all clients. It is safe for concurrent use.
type Controller struct {
	limits    Limits
	queues    [numResources]*queue
	refused   [numResources]atomic.Int64
	granted   [numResources]atomic.Int64
	penalties ledger

	mu                sync.Mutex
	held              map[Flow]*[numResources]int64 // bytes, by Flow.key; no entry is all zero
	of                [numResources]int64
	users             int64
	unauthenticated   int64
	ofUnauthenticated [numResources]int64 // of unauthenticated clients
}

// New returns a Controller with these limits.
func New(limits Limits) *Controller {
	a := &Controller{limits: limits, held: map[Flow]*[numResources]int64{}}
	for resource := SlowClient; resource < numResources; resource++ {
		a.queues[resource] = newQueue(limits.rows[resource])
	}
	return a
}

// Permit holds what a flow has acquired, until Release. A nil Permit is valid.
type Permit struct {
	controller *Controller
	resource   Resource
	bytes      int64
	entry      *entry // nil for resources without seats

	flow Flow // under Controller.mu
	left bool // under Controller.mu
}

// Acquire acquires memory or seats for a flow. For seats, it waits in the queue. The error is a *Full, or the cause
// when ctx ends first.
func (a *Controller) Acquire(ctx context.Context, who Flow, what Cost) (*Permit, error) {
	permit, err := a.Enqueue(who, what)
	if err != nil {
		return nil, err
	}
	if err := permit.Wait(ctx); err != nil {
		permit.Release()
		return nil, err
	}
	return permit, nil
}

// Enqueue is Acquire without the wait; call Permit.Wait.
func (a *Controller) Enqueue(who Flow, what Cost) (*Permit, error) {
	permit := &Permit{controller: a, resource: what.Resource, flow: who}
	if what.Bytes > 0 {
		if err := permit.Grow(what.Bytes, what.Leaves); err != nil {
			return nil, err
		}
	}
	if queue := a.queues[what.Resource]; queue != nil {
		if permit.entry = queue.enqueue(who, what); permit.entry == nil {
			permit.Release()
			a.refused[what.Resource].Add(1)
			return nil, &Full{Resource: what.Resource, Own: true}
		}
	}
	a.granted[what.Resource].Add(1)
	return permit, nil
}

// full returns nil when n more bytes fit and leave the given eighths free.
func (a *Controller) full(who Flow, resource Resource, n, leaves int64) *Full {
	row, part := a.limits.rows[resource], func(most int64) int64 { return most / 8 * (8 - leaves) }
	if who.Unauthenticated() {
		if row.unauthenticated > 0 && a.ofUnauthenticated[resource]+n > row.unauthenticated {
			return &Full{Resource: resource, Own: true}
		}
		if a.unauthenticated+n > part(a.limits.unauthenticated) {
			return &Full{Resource: resource}
		}
		return nil
	}
	if row.memory > 0 && a.holds(who, resource)+n > part(row.memory) {
		return &Full{Resource: resource, Own: true}
	}
	most := a.limits.users - a.limits.users/modestPart
	if mine := a.total(who) + n; mine <= a.limits.users/littlePart {
		// Each user who holds little gets a share of the free memory, so that the next one gets memory, too.
		most = a.limits.users - modestPart*mine
	}
	if a.users+n > part(most) {
		return &Full{Resource: resource}
	}
	return nil
}

func (a *Controller) holds(who Flow, resource Resource) int64 {
	if held := a.held[who.key()]; held != nil {
		return held[resource]
	}
	return 0
}

func (a *Controller) total(who Flow) (sum int64) {
	if held := a.held[who.key()]; held != nil {
		for _, n := range held {
			sum += n
		}
	}
	return sum
}

func (a *Controller) add(who Flow, resource Resource, n int64) {
	key := who.key()
	held := a.held[key]
	if held == nil {
		held = new([numResources]int64)
		a.held[key] = held
	}
	held[resource] += n
	if *held == ([numResources]int64{}) {
		delete(a.held, key)
	}
	a.of[resource] += n
	if who.Unauthenticated() {
		a.unauthenticated += n
		a.ofUnauthenticated[resource] += n
	} else {
		a.users += n
	}
}

// Granted is true when the permit has its seats.
func (p *Permit) Granted() bool {
	if p == nil || p.entry == nil || p.entry.begin == nil {
		return true
	}
	select {
	case <-p.entry.begin:
		return true
	default:
		return false
	}
}

// Wait waits until the permit has its seats. When ctx ends first, it returns the cause. Always call Release afterwards.
//
// Go runs a goroutine that was just woken before those that are ready. With one processor, work for unauthenticated
// clients would pass from one to the next before any user is served, so a woken goroutine yields first.
func (p *Permit) Wait(ctx context.Context) error {
	if p.Granted() {
		return nil
	}
	select {
	case <-p.entry.begin:
		if p.resource.computes() {
			runtime.Gosched()
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Transfer moves the memory of the permit to another flow, when a client has authenticated. If that flow has no memory
// left, it returns a *Full and changes nothing. Seats stay with the old flow.
func (p *Permit) Transfer(to Flow) error {
	if p == nil {
		return nil
	}
	a := p.controller
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.left || p.flow.key() == to.key() {
		return nil
	}
	if full := a.full(to, p.resource, p.bytes, 0); full != nil {
		a.refused[p.resource].Add(1)
		return full
	}
	a.add(p.flow, p.resource, -p.bytes)
	a.add(to, p.resource, p.bytes)
	p.flow = to
	return nil
}

// Grow increases the permit to at least bytes. If they do not fit, or do not leave the given eighths free, it returns a
// *Full and changes nothing.
func (p *Permit) Grow(bytes, leaves int64) error {
	a := p.controller
	a.mu.Lock()
	defer a.mu.Unlock()
	n := bytes - p.bytes
	if p.left || n <= 0 {
		return nil
	}
	if full := a.full(p.flow, p.resource, n, leaves); full != nil {
		if leaves == 0 {
			a.refused[p.resource].Add(1)
		}
		return full
	}
	a.add(p.flow, p.resource, n)
	p.bytes = bytes
	return nil
}

// Release releases the memory and the seats. A second call does nothing.
func (p *Permit) Release() {
	if p == nil {
		return
	}
	if p.entry != nil {
		p.entry.release()
	}
	if p.entry != nil && p.bytes == 0 {
		return
	}
	a := p.controller
	a.mu.Lock()
	defer a.mu.Unlock()
	if !p.left {
		p.left = true
		a.add(p.flow, p.resource, -p.bytes)
	}
}

// Usage is the usage of one resource.
type Usage struct {
	Resource Resource
	// Bytes is the memory held, zero for resources that take none.
	Bytes int64
	// Taken is the number of occupied seats, Waiting the number of queued operations.
	Taken, Waiting int
	// Granted and Refused count permits.
	Granted, Refused int64
}

// Usage returns the usage of each resource.
func (a *Controller) Usage() []Usage {
	all := make([]Usage, numResources)
	a.mu.Lock()
	for resource := range numResources {
		all[resource] = Usage{
			Resource: resource, Bytes: a.of[resource], Granted: a.granted[resource].Load(), Refused: a.refused[resource].Load(),
		}
	}
	a.mu.Unlock()
	for resource, queue := range a.queues {
		if queue != nil {
			queue.mu.Lock()
			all[resource].Taken, all[resource].Waiting = queue.taken, queue.waiting
			queue.mu.Unlock()
		}
	}
	return all
}

// Memory is the memory that users and unauthenticated clients hold, and its limits, in bytes.
type Memory struct{ Users, MostUsers, Unauthenticated, MostUnauthenticated int64 }

// Memory returns the current usage.
func (a *Controller) Memory() Memory {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Memory{a.users, a.limits.users, a.unauthenticated, a.limits.unauthenticated}
}

// Total returns how many bytes a flow holds.
func (a *Controller) Total(who Flow) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total(who)
}

// HeldBy returns how many bytes a flow holds of a resource.
func (a *Controller) HeldBy(who Flow, resource Resource) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.holds(who, resource)
}
