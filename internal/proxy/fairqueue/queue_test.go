package fairqueue_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/fairqueue"
)

// place is a ticket under the name that a test gives it.
type place struct {
	name   string
	ticket *fairqueue.Ticket
}

// join joins as each "owner" or "owner/member" in turn, and fails the test when one is refused.
func join(t *testing.T, q *fairqueue.Queue, names ...string) []*place {
	t.Helper()
	var all []*place
	for _, name := range names {
		owner, member, _ := strings.Cut(name, "/")
		ticket := q.Join(fairqueue.Owner{Name: owner, Member: member})
		if ticket == nil {
			t.Fatalf("%s was refused", name)
		}
		all = append(all, &place{name, ticket})
	}
	return all
}

// order ends what has begun, one after the other, and returns in which order everything began.
func order(places []*place) []string {
	var began []string
	for left := places; len(left) > 0; {
		for i, one := range left {
			if one.ticket.Begun() {
				began = append(began, one.name)
				one.ticket.Done()
				left = append(left[:i:i], left[i+1:]...)
				break
			}
		}
	}
	return began
}

func TestTurns(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		joins []string
		want  []string
	}{
		{"takes one owner's in the order in which they came", []string{"a/1", "a/1", "a/1"}, []string{"a/1", "a/1", "a/1"}},
		{
			"lets another owner's one go before the rest of many",
			[]string{"a", "a", "a", "a", "b"},
			[]string{"a", "a", "b", "a", "a"},
		},
		{"gives each owner the same", []string{"a", "a", "a", "b", "b", "c"}, []string{"a", "a", "b", "c", "a", "b"}},
		{"lets members of an owner take turns", []string{"a/1", "a/1", "a/1", "a/2"}, []string{"a/1", "a/1", "a/2", "a/1"}},
		{
			"counts an owner of many members as one",
			[]string{"a/1", "a/2", "a/3", "a/4", "b/1", "b/1"},
			[]string{"a/1", "a/2", "b/1", "a/3", "b/1", "a/4"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			q := fairqueue.New(fairqueue.Limits{Slots: 1})
			if diff := cmp.Diff(test.want, order(join(t, q, test.joins...))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if q.Running() != 0 || q.Waiting() != 0 || q.Owners() != 0 {
				t.Errorf("want nothing left, got %d running, %d waiting, %d owners", q.Running(), q.Waiting(), q.Owners())
			}
		})
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	q := fairqueue.New(fairqueue.Limits{Slots: 4, MaxSlotsPerMember: 2, MaxPerMember: 3, MaxWaiting: 2})
	of := func(owner string, member int) fairqueue.Owner { return fairqueue.Owner{Name: owner, Member: member} }
	for range 3 {
		q.Join(of("a", 1))
	}
	if q.Running() != 2 || q.Waiting() != 1 {
		t.Errorf("want a member to have 2 slots, got %d, and %d waiting", q.Running(), q.Waiting())
	}
	if q.Join(of("a", 1)) != nil {
		t.Error("want a member's fourth refused")
	}
	one, two := q.Join(of("a", 2)), q.Join(of("b", 1))
	if !one.Begun() || !two.Begun() {
		t.Error("want other members to get the slots that are left")
	}
	three := q.Join(of("c", 1))
	if three.Begun() || q.Running() != 4 || q.Waiting() != 2 {
		t.Error("want no more than the slots that there are")
	}
	if q.Join(of("c", 1)) != nil {
		t.Error("want a second one refused when enough waits")
	}
	if q.Join(of("c", 2)) == nil || q.Waiting() != 3 {
		t.Error("want a member that has nothing to be let in nevertheless")
	}
	two.Done()
	two.Done()
	if !three.Begun() || q.Running() != 4 {
		t.Error("want a slot that was given back to go to a member that may have it")
	}
}

func TestLeaving(t *testing.T) {
	t.Parallel()
	q := fairqueue.New(fairqueue.Limits{Slots: 1})
	a, b := fairqueue.Owner{Name: "a"}, fairqueue.Owner{Name: "b"}
	first, second, third := q.Join(a), q.Join(a), q.Join(b)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	if err := second.Wait(ctx); !errors.Is(err, gone) {
		t.Errorf("want the end of the context, got %v", err)
	}
	second.Done()
	if q.Waiting() != 1 {
		t.Errorf("want one left waiting, got %d", q.Waiting())
	}
	first.Done()
	if err := third.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := third.Wait(ctx); err != nil {
		t.Errorf("want a slot that is there to count, also at the end of the context, got %v", err)
	}
	third.Done()
	if q.Running() != 0 || q.Owners() != 0 {
		t.Error("want nothing left")
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	q := fairqueue.New(fairqueue.Limits{Slots: 3, MaxSlotsPerMember: 2, MaxWaiting: 50})
	var group sync.WaitGroup
	for i := range 200 {
		group.Go(func() {
			ticket := q.Join(fairqueue.Owner{Name: string(rune('a' + i%5)), Member: i % 3})
			if ticket == nil {
				return
			}
			defer ticket.Done()
			ctx, cancel := context.WithCancel(t.Context())
			if i%4 == 0 {
				cancel()
			}
			defer cancel()
			if ticket.Wait(ctx) == nil && q.Running() > 3 {
				t.Error("want no more than three at a time")
			}
		})
	}
	group.Wait()
	if q.Running() != 0 || q.Waiting() != 0 || q.Owners() != 0 {
		t.Errorf("want nothing left, got %d running, %d waiting, %d owners", q.Running(), q.Waiting(), q.Owners())
	}
}

// TestSlotsOfAnOwner checks the bound on all members of an owner together, in a queue without any other.
func TestSlotsOfAnOwner(t *testing.T) {
	t.Parallel()
	q := fairqueue.New(fairqueue.Limits{MaxSlotsPerOwner: 2})
	places := join(t, q, "a/1", "a/1", "a/1", "a/1", "a/2", "b/1", "b/2")
	want := func(what string, want ...bool) {
		t.Helper()
		var began []bool
		for _, one := range places {
			began = append(began, one.ticket.Begun())
		}
		if diff := cmp.Diff(want, began); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	want("at once", true, true, false, false, false, true, true)
	places[0].ticket.Done()
	want("one that waits", true, true, true, false, false, true, true)
	places[1].ticket.Done()
	want("one of the other member", true, true, true, false, true, true, true)
	_ = order(places)
	if q.Running() != 0 || q.Waiting() != 0 || q.Owners() != 0 {
		t.Errorf("want nothing left, got %d running, %d waiting, %d owners", q.Running(), q.Waiting(), q.Owners())
	}
}

// TestFreeSlotsCostLittle counts the allocations of work that need not wait.
func TestFreeSlotsCostLittle(t *testing.T) {
	q := fairqueue.New(fairqueue.Limits{MaxSlotsPerOwner: 2})
	jane := fairqueue.Owner{Name: "jane"}
	if got := testing.AllocsPerRun(100, func() { q.Join(jane).Done() }); got > 1 {
		t.Errorf("want the ticket allocated and nothing else, got %v allocations", got)
	}
}

// TestSpareSlots takes slots for work that can be left out.
func TestSpareSlots(t *testing.T) {
	t.Parallel()
	q := fairqueue.New(fairqueue.Limits{Slots: 4, MaxSlotsPerMember: 2})
	spare := func(name string) *fairqueue.Ticket { return q.JoinSpare(fairqueue.Owner{Name: name, Member: ""}) }
	held := join(t, q, "a")
	first := spare("a")
	if first == nil || !first.Begun() {
		t.Fatal("want a slot while less than half are taken")
	}
	if spare("b") != nil {
		t.Error("want none when half are taken")
	}
	first.Done()
	held[0].ticket.Done()

	q = fairqueue.New(fairqueue.Limits{Slots: 8, MaxSlotsPerMember: 1})
	held = join(t, q, "a", "b")
	if spare("a") != nil {
		t.Error("want none for an owner who would have to wait")
	}
	if q.Running() != 2 || q.Waiting() != 0 || q.Owners() != 2 {
		t.Errorf("want nothing left of it, got %d running, %d waiting, %d owners", q.Running(), q.Waiting(), q.Owners())
	}
	held = append(held, join(t, q, "a")...)
	if spare("c") != nil {
		t.Error("want none while something waits")
	}
	for _, one := range held {
		one.ticket.Done()
	}
	if q.Owners() != 0 {
		t.Errorf("want an empty queue, got %d owners", q.Owners())
	}
}
