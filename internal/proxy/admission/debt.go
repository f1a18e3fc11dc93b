package admission

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// userPart: a user pays debts at the speed of one part of so many of the processors, and all strangers together at
	// that of one part of strangersPart.
	userPart      = 8
	strangersPart = 4
	// fewStrangers is how many connections share that at least.
	fewStrangers = 8
	// Burst is how much processor time a user may owe before it has to wait, and maxDebt how long it waits at most. A
	// connection without a user may owe less: another one is soon opened.
	Burst          = 20 * time.Millisecond
	strangersBurst = 4 * time.Millisecond
	maxDebt        = 2 * time.Second
	// maxAccounts is how many users are remembered until those who owe nothing are forgotten.
	maxAccounts = 4096
)

// Account is what one owner owes. The zero value owes nothing. It is safe for concurrent use.
type Account struct{ paid atomic.Int64 } // when all is paid, in Unix nanoseconds

// owe adds a cost in processor time, paid at a speed in processors as soon as it is more than burst.
func (a *Account) owe(cost, burst time.Duration, speed float64, now time.Time) {
	for {
		before := a.paid.Load()
		free := now.Add(-time.Duration(float64(burst) / speed)).UnixNano()
		after := min(max(before, free)+int64(float64(cost)/speed), now.Add(maxDebt).UnixNano())
		if a.paid.CompareAndSwap(before, after) {
			return
		}
	}
}

// Due returns how long it is until nothing is owed beyond the burst.
func (a *Account) Due(now time.Time) time.Duration {
	return time.Duration(a.paid.Load() - now.UnixNano())
}

// ledger has the accounts of users.
type ledger struct {
	owing atomic.Int64 // accounts, so that most clients need no lock

	mu       sync.Mutex
	accounts map[string]*Account
}

func (l *ledger) of(user string) *Account {
	if l.owing.Load() == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accounts[user]
}

func (l *ledger) open(user string, now time.Time) *Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.accounts == nil {
		l.accounts = map[string]*Account{}
	}
	if len(l.accounts) >= maxAccounts {
		for name, account := range l.accounts {
			if account.Due(now) <= 0 {
				delete(l.accounts, name)
			}
		}
	}
	account := l.accounts[user]
	if account == nil {
		account = &Account{}
		l.accounts[user] = account
	}
	l.owing.Store(int64(len(l.accounts)))
	return account
}

// Owe says that something of a user cost so much processor time and came to nothing.
func (a *Admission) Owe(user string, cost time.Duration) {
	now := time.Now()
	a.debts.open(user, now).owe(cost, Burst, float64(a.limits.processors)/userPart, now)
}

// OweStranger says the same of a connection without a user, which has an account of its own. There are so many of them.
func (a *Admission) OweStranger(account *Account, cost time.Duration, strangers int) {
	speed := float64(a.limits.processors) / strangersPart / float64(fewStrangers+strangers)
	account.owe(cost, strangersBurst, speed, time.Now())
}

// Due returns how long nothing should be read from a user.
func (a *Admission) Due(user string) time.Duration {
	account := a.debts.of(user)
	if account == nil {
		return 0
	}
	return account.Due(time.Now())
}
