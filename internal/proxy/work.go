package proxy

import (
	"context"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/fairqueue"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// WorkLimits say how much of the work that clients cause goes on at a time. Zero is the default.
type WorkLimits struct {
	// AccessReviews and TokenReviews are how many reviews the API server is asked for at a time: 32 and 16 by default.
	// They are apart, so that bearer tokens of strangers do not delay the requests of users who are known.
	AccessReviews, TokenReviews int
	// Logins are how many TokenCredentialRequests are at the API server at a time, 8 by default.
	Logins int
	// PerConnection is how many token reviews, and how many logins, one connection may wait for: 16 by default.
	PerConnection int
	// Requests are how many requests of all users together are at the API server at a time: 128 by default.
	Requests int
	// LongAnswers are how many of them may have long answers, 8 by default.
	LongAnswers int
	// RequestsPerUser is how many ordinary requests of one user are at the API server at a time: 16 by default.
	RequestsPerUser int
	// LongAnswersPerUser is how many of them may have long answers, 4 by default.
	LongAnswersPerUser int
}

func (l *WorkLimits) complete() {
	for _, limit := range []struct {
		value    *int
		standard int
	}{
		{&l.AccessReviews, 32},
		{&l.TokenReviews, 16},
		{&l.Logins, 8},
		{&l.PerConnection, 16},
		{&l.Requests, 128},
		{&l.LongAnswers, 8},
		{&l.RequestsPerUser, 16},
		{&l.LongAnswersPerUser, 4},
	} {
		if *limit.value == 0 {
			*limit.value = limit.standard
		}
	}
}

const (
	// maxWaitingLogins is how many logins wait at most, but for the first one of each connection.
	maxWaitingLogins = 128
	// maxWaitingCertificates is the same for certificates that are to be verified.
	maxWaitingCertificates = 256
	// maxBeginnings is how many watches of all users may begin with all objects at a time.
	maxBeginnings = 16
)

// work is one kind of work that clients cause. How much of it goes on at a time is bounded, and clients take turns.
type work struct {
	what    string // for the error that a client gets
	limit   string // for the same: the key of the bound on what one connection may have in the queue, if there is one
	queue   *fairqueue.Queue
	budget  *budget.Budget // nil when the work is no resource of the budget
	begun   atomic.Int64
	refused atomic.Int64
}

// allWork are the kinds of work.
type allWork struct {
	access, tokens, logins, certificates, forwarded, long, all, allLong, watches *work
}

func newAllWork(limits WorkLimits, processors int, b *budget.Budget) allWork {
	return allWork{
		access: &work{what: "access reviews", budget: b, queue: fairqueue.New(fairqueue.Limits{
			Slots: limits.AccessReviews, MaxSlotsPerMember: half(limits.AccessReviews),
		})},
		tokens: &work{what: "token reviews", limit: "work.perConnection", budget: b, queue: fairqueue.New(fairqueue.Limits{
			Slots: limits.TokenReviews, MaxSlotsPerMember: half(limits.TokenReviews), MaxPerMember: limits.PerConnection,
		})},
		logins: &work{what: "logins", limit: "work.perConnection", queue: fairqueue.New(fairqueue.Limits{
			Slots:             limits.Logins,
			MaxSlotsPerOwner:  max(1, limits.Logins-limits.Logins/4), // the others are for logins that were good before
			MaxSlotsPerMember: half(limits.Logins),
			MaxPerMember:      limits.PerConnection,
			MaxWaiting:        maxWaitingLogins,
		})},
		// Most cores are for users whose certificate is known.
		certificates: &work{what: "certificates", queue: fairqueue.New(fairqueue.Limits{
			Slots: half(processors), MaxWaiting: maxWaitingCertificates,
		})},
		// How many wait is bounded by the budget of requests.
		forwarded: &work{what: "requests", queue: fairqueue.New(fairqueue.Limits{MaxSlotsPerOwner: limits.RequestsPerUser})},
		long: &work{what: "requests for long answers", queue: fairqueue.New(fairqueue.Limits{
			MaxSlotsPerOwner: limits.LongAnswersPerUser,
		})},
		all: &work{what: "requests", queue: fairqueue.New(fairqueue.Limits{
			Slots: limits.Requests, MaxSlotsPerOwner: half(limits.Requests),
		})},
		watches: &work{what: "watches", queue: fairqueue.New(fairqueue.Limits{
			Slots: maxBeginnings, MaxSlotsPerOwner: half(maxBeginnings),
		})},
		allLong: &work{what: "requests for long answers", queue: fairqueue.New(fairqueue.Limits{
			Slots: limits.LongAnswers,
		})},
	}
}

func half(n int) int { return max(1, n/2) }

// turn is a piece of work that waits or goes on, until done.
type turn struct {
	*fairqueue.Ticket
	holding *budget.Holding
}

func (t *turn) done() {
	t.Done()
	t.holding.Release()
}

// begin queues a piece of work of who. It does not wait, and returns a *TooManyError when who has too much already.
func (w *work) begin(who asker) (*turn, error) { return w.beginAs(who, who.owner()) }

// beginAs is begin for work that takes turns with that of the first of owners who has room for it.
func (w *work) beginAs(who asker, owners ...fairqueue.Owner) (*turn, error) {
	var ticket *fairqueue.Ticket
	for _, owner := range owners {
		if ticket = w.queue.Join(owner); ticket != nil {
			break
		}
	}
	if ticket == nil {
		w.refused.Add(1)
		return nil, &request.TooManyError{What: w.what, Limit: w.limit}
	}
	holding, err := w.hold(who, ticket.First())
	if err != nil {
		ticket.Done()
		w.refused.Add(1)
		return nil, budget.TooMany(err)
	}
	w.begun.Add(1)
	return &turn{ticket, holding}, nil
}

// beginSpare begins a piece of work of who that can be left out. It returns nil when there is not much room.
func (w *work) beginSpare(who asker) *turn {
	ticket := w.queue.JoinSpare(who.owner())
	if ticket == nil {
		return nil
	}
	holding, err := w.hold(who, false)
	if err != nil {
		ticket.Done()
		return nil
	}
	w.begun.Add(1)
	return &turn{ticket, holding}
}

// join queues a piece of work of which any amount may wait.
func (w *work) join(owner fairqueue.Owner) *fairqueue.Ticket {
	w.begun.Add(1)
	return w.queue.Join(owner)
}

// hold takes a piece of work out of the budget. The first one of a user or a connection always fits, so that others
// who have used up a share cannot shut it out.
func (w *work) hold(who asker, first bool) (*budget.Holding, error) {
	switch {
	case w.budget == nil:
		return nil, nil //nolint:nilnil // a nil Holding holds nothing
	case first:
		return w.budget.Force(who.Client, budget.Reviews, 1), nil
	}
	return w.budget.Acquire(who.Client, budget.Reviews, 1)
}

// asker is the client for whom work is done.
type asker struct {
	Client     request.Client
	Connection any // nil for requests that came over none
}

// askerOf returns for whom work is done: the user who made the request, before nested impersonation, or else the
// connection that it came on. An anonymous user is no user here.
func askerOf(ctx context.Context) asker {
	state := request.From(ctx)
	if state == nil {
		return asker{}
	}
	who := asker{Client: request.Client{Address: state.Client.Address}, Connection: state.Connection}
	if state.Original != nil && state.Original.GetName() != user.Anonymous {
		who.Client.User = state.Original.GetName()
	}
	return who
}

// owner is one user over all connections, or one connection of an address. Users, addresses and good logins cannot have
// the same name, as the first letter differs.
func (a asker) owner() fairqueue.Owner {
	if a.Client.User != "" {
		return fairqueue.Owner{Name: "u" + a.Client.User}
	}
	return fairqueue.Owner{Name: "a" + a.Client.Address, Member: a.Connection}
}
