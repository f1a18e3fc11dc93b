// Package work is the work that clients cause, a few pieces of each kind at a time: clients take turns.
package work

import (
	"context"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/fairqueue"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// Limits say how much of the work that clients cause goes on at a time. Zero is the default.
type Limits struct {
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

// Complete fills in the defaults.
func (l *Limits) Complete() {
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

// Queue is one kind of work that clients cause. How much of it goes on at a time is bounded, and clients take turns.
type Queue struct {
	what    string // for the error that a client gets
	limit   string // for the same: the key of the bound on what one connection may have in the queue, if there is one
	Fair    *fairqueue.Queue
	budget  *budget.Budget // nil when the work is no resource of the budget
	Begun   atomic.Int64
	Refused atomic.Int64
}

// All are the kinds of work.
type All struct {
	Access, Tokens, Logins, Certificates, Forwarded, Long, All, AllLong, Watches *Queue
}

// NewAll returns all kinds of work within limits. Certificates are verified on half of the processors.
func NewAll(limits Limits, processors int, b *budget.Budget) All {
	return All{
		Access: &Queue{what: "access reviews", budget: b, Fair: fairqueue.New(fairqueue.Limits{
			Slots: limits.AccessReviews, MaxSlotsPerMember: half(limits.AccessReviews),
		})},
		Tokens: &Queue{what: "token reviews", limit: "work.perConnection", budget: b, Fair: fairqueue.New(fairqueue.Limits{
			Slots: limits.TokenReviews, MaxSlotsPerMember: half(limits.TokenReviews), MaxPerMember: limits.PerConnection,
		})},
		Logins: &Queue{what: "logins", limit: "work.perConnection", Fair: fairqueue.New(fairqueue.Limits{
			Slots:             limits.Logins,
			MaxSlotsPerOwner:  max(1, limits.Logins-limits.Logins/4), // the others are for logins that were good before
			MaxSlotsPerMember: half(limits.Logins),
			MaxPerMember:      limits.PerConnection,
			MaxWaiting:        maxWaitingLogins,
		})},
		// Most cores are for users whose certificate is known.
		Certificates: &Queue{what: "certificates", Fair: fairqueue.New(fairqueue.Limits{
			Slots: half(processors), MaxWaiting: maxWaitingCertificates,
		})},
		// How many wait is bounded by the budget of requests.
		Forwarded: &Queue{what: "requests", Fair: fairqueue.New(fairqueue.Limits{MaxSlotsPerOwner: limits.RequestsPerUser})},
		Long: &Queue{what: "requests for long answers", Fair: fairqueue.New(fairqueue.Limits{
			MaxSlotsPerOwner: limits.LongAnswersPerUser,
		})},
		All: &Queue{what: "requests", Fair: fairqueue.New(fairqueue.Limits{
			Slots: limits.Requests, MaxSlotsPerOwner: half(limits.Requests),
		})},
		Watches: &Queue{what: "watches", Fair: fairqueue.New(fairqueue.Limits{
			Slots: maxBeginnings, MaxSlotsPerOwner: half(maxBeginnings),
		})},
		AllLong: &Queue{what: "requests for long answers", Fair: fairqueue.New(fairqueue.Limits{
			Slots: limits.LongAnswers,
		})},
	}
}

func half(n int) int { return max(1, n/2) }

// Turn is a piece of work that waits or goes on, until done.
type Turn struct {
	*fairqueue.Ticket
	holding *budget.Holding
}

// Done ends it, however often it is called.
func (t *Turn) Done() {
	t.Ticket.Done()
	t.holding.Release()
}

// Begin queues a piece of work of who. It does not wait, and returns a *TooManyError when who has too much already.
func (w *Queue) Begin(who Asker) (*Turn, error) { return w.BeginAs(who, who.Owner()) }

// BeginAs is Begin for work that takes turns with that of the first of owners who has room for it.
func (w *Queue) BeginAs(who Asker, owners ...fairqueue.Owner) (*Turn, error) {
	var ticket *fairqueue.Ticket
	for _, owner := range owners {
		if ticket = w.Fair.Join(owner); ticket != nil {
			break
		}
	}
	if ticket == nil {
		w.Refused.Add(1)
		return nil, &request.TooManyError{What: w.what, Limit: w.limit}
	}
	holding, err := w.hold(who, ticket.First())
	if err != nil {
		ticket.Done()
		w.Refused.Add(1)
		return nil, budget.TooMany(err)
	}
	w.Begun.Add(1)
	return &Turn{ticket, holding}, nil
}

// BeginSpare begins a piece of work of who that can be left out. It returns nil when there is not much room.
func (w *Queue) BeginSpare(who Asker) *Turn {
	ticket := w.Fair.JoinSpare(who.Owner())
	if ticket == nil {
		return nil
	}
	holding, err := w.hold(who, false)
	if err != nil {
		ticket.Done()
		return nil
	}
	w.Begun.Add(1)
	return &Turn{ticket, holding}
}

// Join queues a piece of work of which any amount may wait.
func (w *Queue) Join(owner fairqueue.Owner) *fairqueue.Ticket {
	w.Begun.Add(1)
	return w.Fair.Join(owner)
}

// hold takes a piece of work out of the budget. The first one of a user or a connection always fits, so that others
// who have used up a share cannot shut it out.
func (w *Queue) hold(who Asker, first bool) (*budget.Holding, error) {
	switch {
	case w.budget == nil:
		return nil, nil //nolint:nilnil // a nil Holding holds nothing
	case first:
		return w.budget.Force(who.Client, budget.Reviews, 1), nil
	}
	return w.budget.Acquire(who.Client, budget.Reviews, 1)
}

// Asker is the client for whom work is done.
type Asker struct {
	Client     request.Client
	Connection any // nil for requests that came over none
}

// AskerOf returns for whom work is done: the user who made the request, before nested impersonation, or else the
// connection that it came on. An anonymous user is no user here.
func AskerOf(ctx context.Context) Asker {
	state := request.From(ctx)
	if state == nil {
		return Asker{}
	}
	who := Asker{Client: request.Client{Address: state.Client.Address}, Connection: state.Connection}
	if state.Original != nil && state.Original.GetName() != user.Anonymous {
		who.Client.User = state.Original.GetName()
	}
	return who
}

// Owner is one user over all connections, or one connection of an address. Users, addresses and good logins cannot have
// the same name, as the first letter differs.
func (a Asker) Owner() fairqueue.Owner {
	if a.Client.User != "" {
		return fairqueue.Owner{Name: "u" + a.Client.User}
	}
	return fairqueue.Owner{Name: "a" + a.Client.Address, Member: a.Connection}
}
