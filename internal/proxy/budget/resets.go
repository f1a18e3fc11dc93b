package budget

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A share of Resets is so many of them more than other requests, within about this time.
	resetPeriod = time.Minute
	// maxMeters is how many owners are remembered. Beyond it those are forgotten that have the least.
	maxMeters = 8192
)

// meters hold a level for each address and user, and for all unauthenticated clients. A reset or refusal raises the
// level by one, any other request lowers it by one, and it falls to zero within resetPeriod by itself.
type meters struct {
	now   func() time.Time
	count atomic.Int64 // of levels, so that most requests need no lock

	mu     sync.Mutex
	levels map[owner]level
}

type level struct {
	value float64
	at    time.Time
}

// Misused counts n requests of c that were reset before their answer began, or refused. It returns true when c has so
// many of them that its connections deserve no patience.
func (b *Budget) Misused(c Client, n int64) bool {
	m := &b.resets
	m.mu.Lock()
	defer m.mu.Unlock()
	exceeded := false
	for _, o := range owners(c) {
		limit := b.limits[Resets][o.share]
		if limit <= 0 {
			continue
		}
		if next := m.add(o, limit, float64(n)); next >= float64(limit) && !exceeded {
			exceeded = true
			b.refused[Resets][o.share].Add(1)
		}
	}
	return exceeded
}

// IsMisused returns true while c has so many requests that were reset or refused that its connections deserve no
// patience.
func (b *Budget) IsMisused(c Client) bool {
	m := &b.resets
	if m.count.Load() == 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for _, o := range owners(c) {
		limit := b.limits[Resets][o.share]
		if known, ok := m.levels[o]; ok && limit > 0 && m.current(known, limit, now) >= float64(limit) {
			return true
		}
	}
	return false
}

// UserMisuses returns true while the user has so many requests that were reset, refused or not read, over all addresses.
func (b *Budget) UserMisuses(user string) bool {
	m := &b.resets
	if m.count.Load() == 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	limit := b.limits[Resets][PerUser]
	known, ok := m.levels[owner{PerUser, user}]
	return ok && limit > 0 && m.current(known, limit, m.now()) >= float64(limit)
}

// Served counts a request of c that was neither reset nor refused.
func (b *Budget) Served(c Client) {
	m := &b.resets
	if m.count.Load() == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range owners(c) {
		if _, known := m.levels[o]; known {
			m.add(o, b.limits[Resets][o.share], -1)
		}
	}
}

func (m *meters) add(o owner, limit int64, n float64) float64 {
	now := m.now()
	next := m.current(m.levels[o], limit, now) + n
	if next <= 0 {
		delete(m.levels, o)
		m.count.Store(int64(len(m.levels)))
		return 0
	}
	if m.levels == nil {
		m.levels = map[owner]level{}
	}
	// An attacker who is far beyond the limit is not to be remembered for longer than one who is just there.
	next = min(next, 2*float64(limit))
	m.levels[o] = level{next, now}
	if len(m.levels) > maxMeters {
		m.forget(o)
	}
	m.count.Store(int64(len(m.levels)))
	return next
}

func (m *meters) current(l level, limit int64, now time.Time) float64 {
	return max(0, l.value-float64(limit)*now.Sub(l.at).Seconds()/resetPeriod.Seconds())
}

// forget removes the levels that are not above the mean, except one.
func (m *meters) forget(except owner) {
	var sum float64
	for _, l := range m.levels {
		sum += l.value
	}
	least := sum / float64(len(m.levels))
	for o, l := range m.levels {
		if o != except && l.value <= least {
			delete(m.levels, o)
		}
	}
}
