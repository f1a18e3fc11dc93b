package impersonator

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/impersonator/budget"
)

// stages are all stages, in their order.
func stages() []newcomerStage {
	return []newcomerStage{stageSilent, stageWaiting, stageAnswered, stageShaken, stageServing}
}

// admitAt returns a connection that has come to a stage, by way of those before.
func admitAt(all *clientConnections, address string, at newcomerStage) *clientConn {
	c := all.admit(from{address: address})
	for to := stageWaiting; to <= at; to++ {
		all.moveTo(c, to)
	}
	return c
}

// TestNewcomersOfAFlood floods the share of clients without a user with connections that come to a certain stage and stay
// there. A connection of an honest client, from the same address, is not closed for them while it is at another stage, and at
// the same one it has as long as it takes to replace all others of it.
func TestNewcomersOfAFlood(t *testing.T) {
	t.Parallel()
	const room, flood = 64, 1000
	for _, floods := range stages() {
		for _, honest := range stages() {
			t.Run(fmt.Sprintf("at stage %d, honest at %d", floods, honest), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					all := newClientConnections(flooded(room), 1)
					for range room {
						_ = admitAt(all, "192.0.2.1", floods)
					}
					one := admitAt(all, "192.0.2.1", honest)
					survived := 0
					for ; survived < flood && !isClosed(one.gone); survived++ {
						_ = admitAt(all, "192.0.2.1", floods)
					}
					if want := room - 1; floods == honest && survived < want {
						t.Errorf("want it to be there for %d more connections, got %d", want, survived)
					}
					if floods != honest && survived < flood {
						t.Errorf("want it left alone, got closed after %d", survived)
					}
					if got := all.newcomers.count; got > room {
						t.Errorf("want no more than %d, got %d", room, got)
					}
				})
			})
		}
	}
}

// TestNoStageShutsOthersOut has an attacker keep as many connections as there may be at the later stages, and come anew
// again and again. A client goes through all stages meanwhile, with a number of newcomers at each.
func TestNoStageShutsOthersOut(t *testing.T) {
	t.Parallel()
	const room = 100
	const between = room/int(numStages) - 1
	for _, kept := range stages() {
		t.Run(fmt.Sprintf("kept at stage %d", kept), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				all := newClientConnections(flooded(room), 1)
				for range room {
					_ = admitAt(all, "192.0.2.1", kept)
				}
				for range room {
					_ = admitAt(all, "192.0.2.1", stageSilent)
				}
				one := all.admit(from{address: "192.0.2.1"})
				for _, to := range stages() {
					all.moveTo(one, to)
					for range between {
						_ = all.admit(from{address: "192.0.2.1"})
					}
					if isClosed(one.gone) {
						t.Fatalf("want it to come to the end, got closed at stage %d", to)
					}
				}
			})
		})
	}
}

func flooded(room int64) *budget.Budget {
	limits := budget.Defaults()
	limits[budget.Connections][budget.Unauthenticated] = room
	return budget.New(limits, nil)
}

// TestNewcomersLeaveTheList has connections get a user, or end, at each stage.
func TestNewcomersLeaveTheList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := newClientConnections(flooded(64), 1)
		var open []*clientConn
		for i, at := range slices.Concat(stages(), stages()) {
			c := admitAt(all, fmt.Sprintf("192.0.2.%d", i), at)
			if open = append(open, c); i%2 == 0 {
				if err := c.identify("jane"); err != nil {
					t.Fatal(err)
				}
				all.moveTo(c, stageServing)
			}
		}
		if all.newcomers.count != len(open)/2 || len(all.addresses) != len(open)/2 {
			t.Errorf("want half of %d left, got %d of %d addresses", len(open), all.newcomers.count, len(all.addresses))
		}
		for _, c := range open {
			_ = c.Close()
			all.moveTo(c, stageServing)
		}
		for i := range all.newcomers.stages {
			if got := all.newcomers.stages[i].Len(); got != 0 {
				t.Errorf("want none at stage %d, got %d", i, got)
			}
		}
		if all.newcomers.count != 0 || len(all.addresses) != 0 || len(all.populous) != 0 || len(all.open) != 0 {
			t.Errorf("want nothing left, got %d, %d addresses, %d populous ones, %d open",
				all.newcomers.count, len(all.addresses), len(all.populous), len(all.open))
		}
	})
}

// TestIdleConnectionsOfUsersMakeRoom fills the share of all with connections of users. Those of the user with most go, but
// not before they have been idle for a while.
func TestIdleConnectionsOfUsersMakeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limits := budget.Defaults()
		limits[budget.Connections] = [budget.NumShares]int64{4, 4, 4, 4}
		all := newClientConnections(budget.New(limits, nil), 1)
		var open []*clientConn
		for _, user := range []string{"joe", "jane", "jane", "jane"} {
			c := all.admit(from{address: "192.0.2.1"})
			if err := c.identify(user); err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
			time.Sleep(time.Millisecond)
		}
		if all.admit(from{address: "192.0.2.2"}) != nil {
			t.Error("want a newcomer turned away as long as none is idle")
		}
		time.Sleep(2 * idleBeforeEviction)
		open[1].serving.Add(1)
		if all.admit(from{address: "192.0.2.1"}) == nil {
			t.Error("want an idle one to make room")
		}
		var closed []int
		for i, c := range open {
			if isClosed(c.gone) {
				closed = append(closed, i)
			}
		}
		if !slices.Equal(closed, []int{2}) {
			t.Errorf("want the one of the user with most closed that has been idle for longest, got %d", closed)
		}
	})
}
