package flowcontrol

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A user's penalty passes at the speed of one part in userPart of the processors. The penalties of all
	// unauthenticated clients together pass at one part in unauthenticatedPart.
	userPart            = 8
	unauthenticatedPart = 4
	// fewUnauthenticated is the minimum number of connections that share unauthenticatedPart.
	fewUnauthenticated = 8
	// Burst is the processor time that a user can waste before it has to wait, and maxPenalty the longest wait. A
	// connection without a user has a smaller burst, because a new one is cheap.
	Burst                = 20 * time.Millisecond
	unauthenticatedBurst = 4 * time.Millisecond
	maxPenalty           = 2 * time.Second
	// maxAccounts is the number of accounts from which on those without a penalty are dropped.
	maxAccounts = 4096
)

// Penalty is how long a flow has to wait because of wasted work. The zero value is no penalty. It is safe for
// concurrent use.
type Penalty struct{ paid atomic.Int64 } // when the penalty has passed, in Unix nanoseconds

// add adds a cost in processor time beyond the burst. The penalty passes at a speed in processors.
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

// Delay returns how long the flow has to wait. It is negative when there is no penalty.
func (a *Penalty) Delay(now time.Time) time.Duration {
	return time.Duration(a.paid.Load() - now.UnixNano())
}

// ledger has the accounts of users.
type ledger struct {
	active atomic.Int64 // number of accounts: without any, no lock is needed

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

// Penalize charges a user a cost in processor time.
func (a *Controller) Penalize(user string, cost time.Duration) {
	now := time.Now()
	a.penalties.open(user, now).add(cost, Burst, float64(a.limits.processors)/userPart, now)
}

// PenalizeUnauthenticated charges a connection without a user, which has its own account, a cost in processor time.
// unauthenticated is the number of such connections.
func (a *Controller) PenalizeUnauthenticated(account *Penalty, cost time.Duration, unauthenticated int) {
	speed := float64(a.limits.processors) / unauthenticatedPart / float64(fewUnauthenticated+unauthenticated)
	account.add(cost, unauthenticatedBurst, speed, time.Now())
}

// Delay returns how long the listener should read nothing from a user. It may be negative.
func (a *Controller) Delay(user string) time.Duration {
	account := a.penalties.of(user)
	if account == nil {
		return 0
	}
	return account.Delay(time.Now())
}
