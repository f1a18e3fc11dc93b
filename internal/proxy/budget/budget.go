// Package budget counts what clients make the impersonation proxy hold, and refuses what would be too much.
//
// Each thing that a client can make the proxy hold is a Resource. What is held counts for several shares at once: for
// all clients together, for the client's address, and for the user. As long as the user is not known, it counts for
// all unauthenticated clients together instead. Connections cost an attacker nothing, so a bound for each connection
// would bound nothing; that is why every share belongs to an address or a user.
//
// Nothing waits here. What does not fit is refused at once, and the caller answers 429 or 503.
package budget

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// Resource is one kind of thing that a client can make the proxy hold.
type Resource int

const (
	// Connections are open connections.
	Connections Resource = iota
	// Requests are ordinary requests that are being served, and all requests whose user is not known yet.
	Requests
	// Streams are watches, logs and upgraded connections.
	Streams
	// Bytes are bytes in memory: large headers, request bodies that are kept to be sent again, and answers on their way.
	Bytes
	// Resets are streams that were reset before their answer began. They are a rate, see Budget.Reset.
	Resets
	// Reviews are TokenReviews and SubjectAccessReviews that the API server has not answered yet.
	Reviews
	// Unread are ordinary answers that the client has stopped reading, and that are too large to be taken from the API
	// server meanwhile. Each keeps a request busy there.
	Unread
	// NumResources is the number of resources.
	NumResources
)

// String returns the name of the resource in the configuration and in metrics.
func (r Resource) String() string {
	return [...]string{"connections", "requests", "streams", "bytes", "resets", "reviews", "unread"}[r]
}

// Share says for whom a bound holds.
type Share int

const (
	// Total is what all clients may hold together.
	Total Share = iota
	// PerAddress is what the clients of one address may hold together.
	PerAddress
	// PerUser is what one user may hold.
	PerUser
	// Unauthenticated is what all clients without a user may hold together, anonymous ones included.
	Unauthenticated
	// NumShares is the number of shares.
	NumShares
)

// String returns the name of the share in the configuration and in metrics.
func (s Share) String() string {
	return [...]string{"total", "perAddress", "perUser", "unauthenticated"}[s]
}

const (
	// modestPart: one part of so many of the bytes and the requests of an address, and of all, is there beside them for
	// users who hold little.
	modestPart = 8
	// littlePart: little is one part of so many, less than a MiB by default. It is enough for two answers that are not read.
	littlePart = 128
)

// Limits are the bounds of all shares of all resources. A bound of zero means that the share has none.
type Limits [NumResources][NumShares]int64

// Defaults returns the bounds for an agent with 512 MiB of memory, as it is shipped.
//
// The bounds of one address are close to those of all clients. Behind a load balancer that hides addresses, and
// behind NAT, many honest users come from one address, and a low bound would hurt them. The users' shares keep them
// apart from each other.
//
// One user and all clients without a user leave something of an address to others: an attacker with credentials can be
// both.
func Defaults() Limits {
	const mib = 1 << 20
	return Limits{
		//            all together, one address, one user, unauthenticated
		Connections: {4096, 3072, 1024, 512},
		Requests:    {2048, 1792, 1024, 512},
		Streams:     {12288, 12288, 10240, 256},
		Bytes:       {128 * mib, 96 * mib, 48 * mib, 24 * mib},
		Resets:      {0, 2000, 500, 100},
		Reviews:     {2048, 2048, 256, 256},
		Unread:      {16, 12, 4, 4},
	}
}

// Client identifies the client whose shares something counts against.
type Client = request.Client

// Exceeded is the error for what does not fit into a share.
type Exceeded struct {
	Resource Resource
	Share    Share
}

// TooMany makes the answer of an error of the budget. Another error is an unknown bound of everybody.
func TooMany(err error) *request.TooManyError {
	exceeded, ok := errors.AsType[*Exceeded](err)
	if !ok {
		return &request.TooManyError{What: "requests", Everybody: true}
	}
	return &request.TooManyError{
		What:      exceeded.Resource.String(),
		Limit:     "limits." + exceeded.Resource.String() + "." + exceeded.Share.String(),
		Everybody: exceeded.Share == Total || exceeded.Share == Unauthenticated,
	}
}

// Error implements error.
func (e *Exceeded) Error() string {
	return fmt.Sprintf("too many %s: limit %s.%s is reached", e.Resource, e.Resource, e.Share)
}

// Budget counts what is held. It is safe for concurrent use.
type Budget struct {
	limits  Limits
	refused [NumResources][NumShares]atomic.Int64
	resets  meters

	mu     sync.Mutex
	total  [NumResources]int64
	shares map[owner]*[NumResources]int64 // without entries that are all zero
}

// owner is one address or one user, or all unauthenticated clients together, which have no name.
type owner struct {
	share Share
	name  string
}

// New returns a budget of which nothing is held. A nil now is time.Now.
func New(limits Limits, now func() time.Time) *Budget {
	if now == nil {
		now = time.Now
	}
	return &Budget{limits: limits, shares: map[owner]*[NumResources]int64{}, resets: meters{now: now}}
}

// Limits returns the bounds.
func (b *Budget) Limits() Limits { return b.limits }

// owners returns the address's share and that of the user, or that of all unauthenticated clients.
func owners(c Client) [2]owner {
	if c.User == "" {
		return [2]owner{{PerAddress, c.Address}, {Unauthenticated, ""}}
	}
	return [2]owner{{PerAddress, c.Address}, {PerUser, c.User}}
}

// Holding is something that a client holds, until Release. A nil Holding holds nothing.
type Holding struct {
	budget   *Budget
	resource Resource
	amount   int64
	client   Client // changed under budget.mu
	released bool   // changed under budget.mu
}

// Acquire takes n of a resource for a client. It returns an *Exceeded, and takes nothing, when that does not fit into
// every share that it counts for.
func (b *Budget) Acquire(c Client, r Resource, n int64) (*Holding, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := owners(c)
	for _, o := range all {
		if limit := b.limitFor(c, r, o.share, n); limit > 0 && b.held(o, r)+n > limit {
			return nil, b.refuse(r, o.share)
		}
	}
	if limit := b.limitFor(c, r, Total, n); limit > 0 && b.total[r]+n > limit {
		return nil, b.refuse(r, Total)
	}
	return b.take(c, r, n), nil
}

// limitFor returns the bound of a share for a client who wants n of a resource.
//
// Beyond the bytes and the requests that many users may have together there are some for users who hold little:
// otherwise many others, each far from that user's own bound, would leave nothing. Such a user may hold an eighth as
// much as is still free, so that something is left for the next one.
func (b *Budget) limitFor(c Client, r Resource, s Share, n int64) int64 {
	limit := b.limits[r][s]
	if r != Bytes && r != Requests || limit <= 0 || s != PerAddress && s != Total || c.User == "" {
		return limit
	}
	mine := b.held(owner{PerUser, c.User}, r) + n
	if mine <= limit/littlePart {
		return limit + limit/modestPart - modestPart*mine
	}
	return limit
}

// Spare takes n of a resource for a client, but leaves a quarter of each share for what cannot wait. It returns nil
// when there is not that much to spare.
func (b *Budget) Spare(c Client, r Resource, n int64) *Holding {
	b.mu.Lock()
	defer b.mu.Unlock()
	fits := func(limit, held int64) bool { return limit <= 0 || held+n <= limit-limit/4 }
	for _, o := range owners(c) {
		if !fits(b.limits[r][o.share], b.held(o, r)) {
			return nil
		}
	}
	if !fits(b.limits[r][Total], b.total[r]) {
		return nil
	}
	return b.take(c, r, n)
}

// Force takes n of a resource for a client without looking at the bounds. It is for the little that each connection
// may always have, so that a full share does not shut every newcomer out.
func (b *Budget) Force(c Client, r Resource, n int64) *Holding {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.take(c, r, n)
}

func (b *Budget) take(c Client, r Resource, n int64) *Holding {
	b.total[r] += n
	for _, o := range owners(c) {
		b.add(o, r, n)
	}
	return &Holding{budget: b, resource: r, amount: n, client: c}
}

func (b *Budget) refuse(r Resource, s Share) *Exceeded {
	b.refused[r][s].Add(1)
	return &Exceeded{r, s}
}

func (b *Budget) held(o owner, r Resource) int64 {
	if held := b.shares[o]; held != nil {
		return held[r]
	}
	return 0
}

func (b *Budget) add(o owner, r Resource, n int64) {
	held := b.shares[o]
	if held == nil {
		held = new([NumResources]int64)
		b.shares[o] = held
	}
	held[r] += n
	if *held == ([NumResources]int64{}) {
		delete(b.shares, o)
	}
}

// Identify sets the user of the holding, or replaces it by another user. When the share of that user is full, it
// returns an *Exceeded and changes nothing.
func (h *Holding) Identify(user string) error {
	if h == nil {
		return nil
	}
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.released || h.client.User == user {
		return nil
	}
	to := Client{Address: h.client.Address, User: user}
	before, after := owners(h.client)[1], owners(to)[1]
	if limit := b.limits[h.resource][after.share]; limit > 0 && b.held(after, h.resource)+h.amount > limit {
		return b.refuse(h.resource, after.share)
	}
	b.add(after, h.resource, h.amount)
	b.add(before, h.resource, -h.amount)
	h.client = to
	return nil
}

// Release gives back what is held. A second call does nothing.
func (h *Holding) Release() {
	if h == nil {
		return
	}
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.released {
		return
	}
	h.released = true
	b.total[h.resource] -= h.amount
	for _, o := range owners(h.client) {
		b.add(o, h.resource, -h.amount)
	}
}

// Held returns how much of a resource all clients hold together.
func (b *Budget) Held(r Resource) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total[r]
}

// HeldUnauthenticated returns how much of a resource all unauthenticated clients hold together.
func (b *Budget) HeldUnauthenticated(r Resource) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held(owner{Unauthenticated, ""}, r)
}

// HeldByUser returns how much of a resource one user holds.
func (b *Budget) HeldByUser(r Resource, user string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held(owner{PerUser, user}, r)
}

// IsFull is true while a user has as much of a resource as one may have.
func (b *Budget) IsFull(r Resource, user string) bool {
	limit := b.limits[r][PerUser]
	return limit > 0 && b.HeldByUser(r, user) >= limit
}

// Largest returns how much of a resource the user who holds most of it has.
func (b *Budget) Largest(r Resource) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var most int64
	for o, held := range b.shares {
		if o.share == PerUser {
			most = max(most, held[r])
		}
	}
	return most
}

// Refused returns how often a share was full.
func (b *Budget) Refused(r Resource, s Share) int64 { return b.refused[r][s].Load() }
