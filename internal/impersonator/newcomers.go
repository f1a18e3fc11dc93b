package impersonator

import (
	"container/list"

	"github.com/pinniped-toolkit/pinniped/internal/impersonator/budget"
)

// newcomerStage is how far a connection without a user has come.
type newcomerStage int

const (
	stageSilent   newcomerStage = iota // no client hello has come
	stageWaiting                       // its handshake waits for its turn
	stageAnswered                      // the client has our part of the handshake, or is about to get it
	stageShaken                        // the handshake is done, and no request is being served
	stageServing                       // a request is being served, and may yet say who the user is
	numStages
)

// newcomers are connections without a user: those of all clients, or of one address.
//
// When one has to go, it is the oldest of a stage, and not simply the oldest: so connections that cost an attacker nothing
// replace each other, and not those of clients who are in the middle of a handshake or wait for a review. To come to a later
// stage takes work: a handshake has to have its turn, and then the client's part. A stage of which there are not more than
// there would be if all had the same is left alone. So an attacker who keeps many connections in one stage does not
// make clients go that have just come to an earlier one.
type newcomers struct {
	stages [numStages]list.List // of *clientConn; the one that has been there for the longest time first
	count  int
}

// listed is where a connection without a user is listed. clientConnections.mu guards it.
type listed struct {
	stage     newcomerStage
	of        *newcomers    // those of the address
	all, some *list.Element // among all clients, and among those of the address; nil when it is not listed any more
}

// first returns the one that has to go, nil when there is none.
func (n *newcomers) first() *clientConn {
	for i := range n.stages {
		if in := &n.stages[i]; in.Len() > 0 && in.Len()*int(numStages) >= n.count {
			return in.Front().Value.(*clientConn) //nolint:forcetypeassert // nothing else is in the list
		}
	}
	return nil
}

// add lists a connection that was accepted. The caller holds all.mu.
func (all *clientConnections) add(c *clientConn) {
	all.open[c] = struct{}{}
	of := all.addresses[c.address]
	if of == nil {
		of = &newcomers{}
		all.addresses[c.address] = of
	}
	c.place.of, c.place.some = of, of.stages[stageSilent].PushBack(c)
	c.place.all = all.newcomers.stages[stageSilent].PushBack(c)
	all.newcomers.count++
	if of.count++; of.count > all.few {
		all.populous[c.address] = of
	}
}

// unlist is called when a connection has a user, or is closed. The caller holds all.mu.
func (all *clientConnections) unlist(c *clientConn) {
	if c.place.all == nil {
		return
	}
	of := c.place.of
	of.stages[c.place.stage].Remove(c.place.some)
	all.newcomers.stages[c.place.stage].Remove(c.place.all)
	c.place.some, c.place.all = nil, nil
	all.newcomers.count--
	if of.count--; of.count <= all.few {
		delete(all.populous, c.address)
	}
	if of.count == 0 {
		delete(all.addresses, c.address)
	}
}

// moveTo says how far a connection has come. For one with a user it does nothing.
func (all *clientConnections) moveTo(c *clientConn, to newcomerStage) {
	if c.user.Load() != nil {
		return
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if c.place.all == nil || c.place.stage == to {
		return
	}
	of := c.place.of
	of.stages[c.place.stage].Remove(c.place.some)
	all.newcomers.stages[c.place.stage].Remove(c.place.all)
	c.place.stage = to
	c.place.some = of.stages[to].PushBack(c)
	c.place.all = all.newcomers.stages[to].PushBack(c)
}

// newcomer returns the connection without a user that has to make room for one from address, nil when there is none. With
// same, it must come from that address. Otherwise it is of the address with the most. An address that has only a few is
// not told from others: an attacker may have as many addresses as connections, and many honest clients may share one.
//
// It looks at no more addresses than can have more than a few.
func (all *clientConnections) newcomer(address string, same bool) *clientConn {
	if same {
		if of := all.addresses[address]; of != nil {
			return of.first()
		}
		return nil
	}
	from := &all.newcomers
	var most *newcomers
	for _, of := range all.populous {
		if most == nil || of.count > most.count {
			most = of
		}
	}
	if most != nil {
		from = most
	}
	return from.first()
}

// fewOfAddress is how many connections without a user one address may have without being told from others.
func fewOfAddress(b *budget.Budget) int {
	limits := b.Limits()[budget.Connections]
	if limits[budget.Unauthenticated] > 0 {
		return int(limits[budget.Unauthenticated] / 16)
	}
	return int(limits[budget.Total] / 16)
}
