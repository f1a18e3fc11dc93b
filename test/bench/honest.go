package main

import (
	"context"
	"sync"
	"time"
)

// goingOn are honest users at work.
type goingOn struct {
	began time.Time
	group sync.WaitGroup
	mu    sync.Mutex
	all   pacedSample
}

// goOn has all users go on until paced ends. What they have asked for by then is still answered, unless ctx ends. A
// request that fails is counted.
func (h *honest) goOn(ctx, paced context.Context) *goingOn {
	users := &goingOn{began: time.Now()}
	for number, one := range h.users {
		users.group.Go(func() {
			// Not all at the same moment.
			for turn, more := 1, sleep(paced, one.pace*time.Duration(number)/honestUsers); more; turn++ {
				asked := time.Now()
				err := one.do(ctx, turn)
				took := time.Since(asked)
				users.add(asked, took, err)
				more = sleep(paced, max(0, one.pace-took))
			}
		})
	}
	return users
}

func (u *goingOn) add(asked time.Time, took time.Duration, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all.requests++
	u.all.latencies = append(u.all.latencies, took)
	if asked.Sub(u.began) >= time.Second {
		u.all.later = append(u.all.later, took)
	}
	if err != nil {
		u.all.failed++
		if u.all.first == nil {
			u.all.first = err
		}
	}
}

// wait returns what came of their requests when all users have stopped.
func (u *goingOn) wait() pacedSample {
	u.group.Wait()
	return u.all
}
