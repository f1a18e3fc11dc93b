package flowcontrol

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// userPart: penalties of a user pass at the speed of one part in userPart of the processors, and those of all
	// unauthenticated clients together at that of one part in unauthenticatedPart.
	userPart            = 8
	unauthenticatedPart = 4
	// fewUnauthenticated is how many connections share that at least.
	fewUnauthenticated = 8
	// Burst is the penalty in processor time from which on a user has to wait, and maxDelay how long it waits at most.
	// A connection without a user has a smaller burst: a new one is cheap.
	Burst                = 20 * time.Millisecond
	unauthenticatedBurst = 4 * time.Millisecond
	maxPenalty           = 2 * time.Second
	// maxAccounts is how many accounts are kept until those without a penalty are dropped.
	maxAccounts = 4096
)

// Penalty is the delay that a flow has to wait for wasted work. The zero value is none. It is safe for concurrent use.
type Penalty struct{ paid atomic.Int64 } // when all is paid, in Unix nanoseconds

// add adds a cost in processor time, which passes at a speed in processors beyond the burst.
func (a *Penalty) add(cost, burst time.Duration, speed float64, now time.Time) {
	for {
		before := a.paid.Load()
		free := now.Add(-time.Duration(float64(burst) / speed)).UnixNano()
		after := min(max(before, free)+int64(float64(cost)/speed), now.Add(maxPenalty).UnixNano())
		if a.paid.CompareAndSwap(before, after) {
			return
		}
	}
}

// Delay returns how long the flow has to wait.
func (a *Penalty) Delay(now time.Time) time.Duration {
	return time.Duration(a.paid.Load() - now.UnixNano())
}

// ledger has the accounts of users.
type ledger struct {
	active atomic.Int64 // accounts, so that most clients need no lock

	mu       sync.Mutex
	accounts map[string]*Penalty
}

func (l *ledger) of(user string) *Penalty {
	if l.active.Load() == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accounts[user]
}

func (l *ledger) open(user string, now time.Time) *Penalty {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.accounts == nil {
		l.accounts = map[string]*Penalty{}
	}
	if len(l.accounts) >= maxAccounts {
		for name, account := range l.accounts {
			if account.Delay(now) <= 0 {
				delete(l.accounts, name)
			}
		}
	}
	account := l.accounts[user]
	if account == nil {
		account = &Penalty{}
		l.accounts[user] = account
	}
	l.active.Store(int64(len(l.accounts)))
	return account
}

// Penalize charges a user a penalty in processor time.
func (a *Controller) Penalize(user string, cost time.Duration) {
	now := time.Now()
	a.penalties.open(user, now).add(cost, Burst, float64(a.limits.processors)/userPart, now)
}

// PenalizeUnauthenticated charges a connection without a user, which has an account of its own. unauthenticated is the
// number of such connections.
func (a *Controller) PenalizeUnauthenticated(account *Penalty, cost time.Duration, unauthenticated int) {
	speed := float64(a.limits.processors) / unauthenticatedPart / float64(fewUnauthenticated+unauthenticated)
	account.add(cost, unauthenticatedBurst, speed, time.Now())
}

// Delay returns how long nothing should be read from a user.
func (a *Controller) Delay(user string) time.Duration {
	account := a.penalties.of(user)
	if account == nil {
		return 0
	}
	return account.Delay(time.Now())
}
