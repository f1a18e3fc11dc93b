package budget_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

var (
	nobody = budget.Client{Address: "10.0.0.1"}
	jane   = budget.Client{Address: "10.0.0.1", User: "jane"}
	joe    = budget.Client{Address: "10.0.0.2", User: "joe"}
)

// small returns a budget with small bounds for requests.
func small() *budget.Budget {
	var limits budget.Limits
	limits[budget.Requests] = [budget.NumShares]int64{
		budget.Total:           6,
		budget.PerAddress:      5,
		budget.PerUser:         3,
		budget.Unauthenticated: 2,
	}
	limits[budget.Resets] = [budget.NumShares]int64{budget.PerAddress: 100, budget.PerUser: 10, budget.Unauthenticated: 10}
	return budget.New(limits, nil)
}

func TestAcquire(t *testing.T) {
	t.Parallel()
	other := budget.Client{Address: "10.0.0.1", User: "other"}
	for _, test := range []struct {
		name string
		held []budget.Client
		next budget.Client
		want budget.Share
		fits bool
	}{
		{name: "gives what fits", held: []budget.Client{jane, jane}, next: jane, fits: true},
		{name: "refuses a user's fourth", held: []budget.Client{jane, jane, jane}, next: jane, want: budget.PerUser},
		{name: "gives to another user meanwhile", held: []budget.Client{jane, jane, jane}, next: joe, fits: true},
		{
			name: "refuses a third without a user", held: []budget.Client{nobody, nobody},
			next: budget.Client{Address: "10.9.9.9"}, want: budget.Unauthenticated,
		},
		{
			name: "refuses an address's sixth", held: []budget.Client{jane, jane, jane, other, other}, next: other,
			want: budget.PerAddress,
		},
		{
			name: "refuses a seventh of all", held: []budget.Client{jane, jane, jane, joe, joe, joe},
			next: budget.Client{Address: "10.0.0.3", User: "jim"}, want: budget.Total,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := small()
			for _, c := range test.held {
				if _, err := b.Acquire(c, budget.Requests, 1); err != nil {
					t.Fatal(err)
				}
			}
			_, err := b.Acquire(test.next, budget.Requests, 1)
			exceeded, refused := errors.AsType[*budget.Exceeded](err)
			switch {
			case test.fits && err != nil:
				t.Errorf("want it to fit, got %v", err)
			case !test.fits && (!refused || exceeded.Share != test.want):
				t.Errorf("want %v refused, got %v", test.want, err)
			case !test.fits && (b.Held(budget.Requests) != int64(len(test.held)) || b.Refused(budget.Requests, test.want) != 1):
				t.Errorf("want nothing taken and the refusal counted, got %d held", b.Held(budget.Requests))
			}
		})
	}
}

func TestHolding(t *testing.T) {
	t.Parallel()
	b := small()
	h, err := b.Acquire(nobody, budget.Requests, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Identify("jane"); err != nil {
		t.Fatal(err)
	}
	if got := b.HeldByUser(
		budget.Requests,
		"jane",
	); got != 2 || b.HeldUnauthenticated(budget.Requests) != 0 ||
		b.Largest(budget.Requests) != 2 {
		t.Errorf("want 2 moved to the user, got %d", got)
	}
	second, err := b.Acquire(nobody, budget.Requests, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Identify("jane"); err == nil {
		t.Error("want no more for a user whose share is full")
	}
	if b.HeldUnauthenticated(budget.Requests) != 2 {
		t.Error("want a refused holding to stay where it was")
	}
	h.Release()
	h.Release()
	second.Release()
	if got := b.Held(budget.Requests); got != 0 {
		t.Errorf("want nothing held, got %d", got)
	}
	if err := h.Identify("joe"); err != nil || b.HeldByUser(budget.Requests, "joe") != 0 {
		t.Error("want nothing to happen after the release")
	}
	var none *budget.Holding
	none.Release()
	if err := none.Identify("jane"); err != nil {
		t.Error(err)
	}
}

func TestForce(t *testing.T) {
	t.Parallel()
	b := small()
	for range 5 {
		defer b.Force(nobody, budget.Requests, 1).Release()
	}
	if _, err := b.Acquire(nobody, budget.Requests, 1); err == nil || b.HeldUnauthenticated(budget.Requests) != 5 {
		t.Error("want what was forced to count")
	}
}

func TestResets(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var limits budget.Limits
	limits[budget.Resets] = [budget.NumShares]int64{budget.PerAddress: 100, budget.PerUser: 10, budget.Unauthenticated: 10}
	b := budget.New(limits, func() time.Time { return now })
	if b.Misused(jane, 9) {
		t.Error("want 9 let pass")
	}
	if !b.Misused(jane, 1) {
		t.Error("want the tenth to be too much, whatever connection it is on")
	}
	if b.Misused(joe, 1) {
		t.Error("want others not to notice")
	}
	if !b.UserMisuses("jane") || b.UserMisuses("joe") || !b.IsMisused(jane) || b.IsMisused(joe) {
		t.Error("want it known of the user")
	}
	now = now.Add(30 * time.Second)
	if b.UserMisuses("jane") || b.IsMisused(jane) {
		t.Error("want it forgiven")
	}
	if b.Misused(jane, 4) {
		t.Error("want half forgiven after half the time")
	}
	for range 5 {
		b.Served(jane)
	}
	if b.Misused(jane, 4) {
		t.Error("want other requests to make up for these")
	}
	for i := range 9 {
		b.Misused(budget.Client{Address: fmt.Sprint(i)}, 1)
	}
	if !b.Misused(budget.Client{Address: "10"}, 1) {
		t.Error("want all clients without a user to have one share")
	}
	if !b.IsMisused(nobody) {
		t.Error("want it known of all of these")
	}
	if b.Refused(budget.Resets, budget.PerUser) != 1 || b.Refused(budget.Resets, budget.Unauthenticated) != 1 {
		t.Error("want each full share counted")
	}
	if one := (budget.Client{Address: "192.0.2.1", User: "one"}); b.IsMisused(one) {
		t.Error("want no address to be the worse for others")
	}
	for i := range 99 {
		b.Misused(budget.Client{Address: "192.0.2.1", User: fmt.Sprint("many-", i)}, 1)
	}
	if one := (budget.Client{Address: "192.0.2.1", User: "one"}); !b.Misused(one, 1) || !b.IsMisused(one) {
		t.Error("want those of all users of an address to be too many")
	}
	if b.Refused(budget.Resets, budget.PerAddress) != 1 {
		t.Error("want the full share of the address counted")
	}
	b.Misused(joe, 90)
	if now = now.Add(61 * time.Second); b.IsMisused(joe) {
		t.Error("want it forgiven as soon, however many they were")
	}
}

func TestRememberedResetsAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := budget.New(budget.Defaults(), func() time.Time { return now })
	b.Misused(jane, 500)
	for i := range 50_000 {
		b.Misused(budget.Client{Address: fmt.Sprint(i), User: fmt.Sprint(i)}, 1)
	}
	if got := b.Remembered(); got > 10_000 {
		t.Errorf("want few owners remembered, got %d", got)
	}
	if !b.Misused(jane, 1) {
		t.Error("want the worst not to be forgotten")
	}
}

func TestEverythingIsGivenBack(t *testing.T) {
	t.Parallel()
	b := budget.New(budget.Defaults(), nil)
	var group sync.WaitGroup
	for i := range 50 {
		group.Go(func() {
			for r := range budget.NumResources {
				h, err := b.Acquire(budget.Client{Address: "a"}, r, 1)
				if err != nil {
					continue
				}
				_ = h.Identify(fmt.Sprint(i))
				h.Release()
			}
		})
	}
	group.Wait()
	for r := range budget.NumResources {
		if b.Held(r) != 0 || b.HeldUnauthenticated(r) != 0 || b.Largest(r) != 0 {
			t.Errorf("want no %v held", r)
		}
	}
	if got := b.Owners(); got != 0 {
		t.Errorf("want no owner remembered who holds nothing, got %d", got)
	}
}

func TestDefaultsAreInOrder(t *testing.T) {
	t.Parallel()
	for r, limits := range budget.Defaults() {
		for s, limit := range limits {
			if total := limits[budget.Total]; total > 0 && limit > total {
				t.Errorf("%v.%v: %d is more than all have together", budget.Resource(r), budget.Share(s), limit)
			}
		}
	}
}

// TestSpare checks that what can wait leaves a quarter of each share for what cannot.
func TestSpare(t *testing.T) {
	t.Parallel()
	for name, bounded := range map[string]budget.Share{
		"of all": budget.Total, "of an address": budget.PerAddress, "of a user": budget.PerUser,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var limits budget.Limits
			limits[budget.Bytes][bounded] = 100
			b := budget.New(limits, nil)
			held := b.Spare(jane, budget.Bytes, 75)
			if held == nil {
				t.Fatal("want three quarters given")
			}
			if b.Spare(jane, budget.Bytes, 1) != nil {
				t.Error("want the rest kept")
			}
			if _, err := b.Acquire(jane, budget.Bytes, 25); err != nil {
				t.Errorf("want the rest given to what cannot wait, got %v", err)
			}
			if b.Refused(budget.Bytes, bounded) != 0 {
				t.Error("want it not counted as a refusal")
			}
			held.Release()
			if got := b.Held(budget.Bytes); got != 25 {
				t.Errorf("want it given back, got %d", got)
			}
		})
	}
}

// TestAddressesOutlastOneUser looks at the bounds of an attacker who is one user, and a client without a user as well.
func TestAddressesOutlastOneUser(t *testing.T) {
	t.Parallel()
	for r, limits := range budget.Defaults() {
		if used := limits[budget.PerUser] + limits[budget.Unauthenticated]; used >= limits[budget.PerAddress] {
			t.Errorf("want some of %d %s of an address left, got %d used", limits[budget.PerAddress], budget.Resource(r), used)
		}
	}
}

// TestModestUsers has many users take all bytes of their address that they get, each far below the bound of one user. A
// user who holds little still gets some.
func TestModestUsers(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	b := budget.New(budget.Defaults(), nil)
	most := b.Limits()[budget.Bytes]
	for i := range 1000 {
		_, _ = b.Acquire(budget.Client{Address: "10.0.0.1", User: fmt.Sprint(i % 100)}, budget.Bytes, mib)
	}
	if got := b.Held(budget.Bytes); got != most[budget.PerAddress] {
		t.Errorf("want %d bytes given to those who take much, got %d", most[budget.PerAddress], got)
	}
	held, err := b.Acquire(jane, budget.Bytes, mib/4)
	if err != nil {
		t.Errorf("want another user to get a little, got %v", err)
	}
	if _, err := b.Acquire(jane, budget.Bytes, mib); err == nil {
		t.Error("want no more for her when that is not little any more")
	}
	if _, err := b.Acquire(nobody, budget.Bytes, mib/4); err == nil {
		t.Error("want nothing of it for clients without a user")
	}
	held.Release()
	for i := range 1000 {
		_, _ = b.Acquire(budget.Client{Address: "10.0.0.1", User: "many-" + fmt.Sprint(i)}, budget.Bytes, mib/4)
	}
	if got, bound := b.Held(budget.Bytes), most[budget.PerAddress]; got <= bound || got > bound+bound/8 {
		t.Errorf("want no more than an eighth beside the bound of the address, got %d bytes", got)
	}
	if _, err := b.Acquire(jane, budget.Bytes, mib/8); err != nil {
		t.Errorf("want something left for the next, got %v", err)
	}
}

// TestSharesAreNeverUsedUp has numbers of users take all bytes and requests that they get, in small pieces, from one
// address or each from another. The next user gets enough for a short request, and no more is held than there may be.
func TestSharesAreNeverUsedUp(t *testing.T) {
	t.Parallel()
	for _, users := range []int{2, 10, 30, 100, 300, 1000} {
		for _, one := range []struct {
			what        budget.Resource
			piece, next int64
			addresses   int
			full        budget.Share
		}{
			{budget.Bytes, 16 << 10, 64 << 10, 1, budget.PerAddress},
			{budget.Bytes, 16 << 10, 64 << 10, users, budget.Total},
			{budget.Requests, 1, 1, 1, budget.PerAddress},
			{budget.Requests, 1, 1, users, budget.Total},
		} {
			b := budget.New(budget.Defaults(), nil)
			for got := true; got; {
				got = false
				for i := range users {
					client := budget.Client{Address: fmt.Sprint("10.0.0.", 1+i%one.addresses), User: fmt.Sprint("many-", i)}
					_, err := b.Acquire(client, one.what, one.piece)
					got = got || err == nil
				}
			}
			bound := b.Limits()[one.what][one.full]
			if got := b.Held(one.what); got > bound+bound/8 {
				t.Errorf("%d users: want at most %d %v %v held, got %d", users, bound+bound/8, one.what, one.full, got)
			}
			if _, err := b.Acquire(jane, one.what, one.next); err != nil {
				t.Errorf("%d users: want some %v %v left for the next, got %v", users, one.what, one.full, err)
			}
		}
	}
}
