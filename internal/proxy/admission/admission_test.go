package admission_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
)

const (
	mib = 1 << 20
)

// users is how much all users may hold.
var users = standard().Memory().MostUsers

var (
	nobody = admission.Owner{Address: "10.0.0.1"}
	jane   = admission.Owner{Address: "10.0.0.1", User: "jane"}
)

func user(i int) admission.Owner {
	return admission.Owner{Address: "10.0.0.2", User: fmt.Sprint("user-", i)}
}

func standard() *admission.Admission {
	return admission.New(admission.LimitsFor(admission.DefaultMemory, 2))
}

// fill has an owner take memory of a kind until it gets no more.
func fill(a *admission.Admission, who admission.Owner, kind admission.Kind, each int64) (got int64) {
	for {
		if _, err := a.Join(who, admission.Cost{Kind: kind, Bytes: each}); err != nil {
			return got
		}
		got += each
	}
}

// TestStrangersTakeNothingFromUsers fills what strangers may have, from many addresses.
func TestStrangersTakeNothingFromUsers(t *testing.T) {
	t.Parallel()
	a := standard()
	var sum int64
	for i := range 100 {
		sum += fill(a, admission.Owner{Address: fmt.Sprint(i)}, admission.Connection, admission.AcceptedBytes)
	}
	if most := a.Memory().MostStrangers; sum > most {
		t.Errorf("want at most %d bytes for strangers, got %d", most, sum)
	}
	if got := fill(a, jane, admission.Answer, mib); got < users/8 {
		t.Errorf("want a user to get as much as ever, got %d", got)
	}
}

// TestSomethingIsLeftForTheNext has numbers of users take all they get, in every kind of memory. The next one gets
// enough for some requests, and never is more held than there may be.
func TestSomethingIsLeftForTheNext(t *testing.T) {
	t.Parallel()
	for _, many := range []int{1, 3, 10, 30, 100, 1000} {
		for _, each := range []int64{64 << 10, mib} {
			a := standard()
			for i := range many {
				for kind := admission.Connection; kind <= admission.Answer; kind++ {
					fill(a, user(i), kind, each)
				}
			}
			if got := a.Memory(); got.Users > users {
				t.Errorf("%d users: want at most %d bytes held, got %d", many, users, got.Users)
			}
			if got := fill(a, jane, admission.Request, 16<<10); got < 32<<10 {
				t.Errorf("%d users, %d at a time: want something left for the next, got %d", many, each, got)
			}
		}
	}
}

// TestTenThousandWatches has one user open as many watches as one replica is to hold.
func TestTenThousandWatches(t *testing.T) {
	t.Parallel()
	if got := fill(standard(), jane, admission.Stream, admission.StreamBytes); got < 10_000*admission.StreamBytes {
		t.Errorf("want 10000 watches, got %d", got/admission.StreamBytes)
	}
}

func TestMove(t *testing.T) {
	t.Parallel()
	a := standard()
	place, err := a.Join(nobody, admission.Cost{Kind: admission.Request, Bytes: mib})
	if err != nil {
		t.Fatal(err)
	}
	if err := place.Move(jane); err != nil {
		t.Fatal(err)
	}
	if a.Total(nobody) != 0 || a.HeldBy(jane, admission.Request) != mib {
		t.Error("want the memory to be the user's")
	}
	fill(a, jane, admission.Request, mib)
	second, err := a.Join(nobody, admission.Cost{Kind: admission.Request, Bytes: mib})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Move(jane); !isFull(err) || a.Total(nobody) != mib {
		t.Errorf("want it to stay where it was, got %v", err)
	}
	if err := second.Grow(users+mib, 0); !isFull(err) {
		t.Errorf("want no more for a stranger than strangers have, got %v", err)
	}
	second.Leave()
	second.Leave()
	if a.Total(nobody) != 0 {
		t.Error("want it given back")
	}
	var none *admission.Place
	none.Leave()
	if err := none.Move(jane); err != nil || !none.Begun() {
		t.Error("want nothing to be nothing")
	}
}

func isFull(err error) bool {
	_, full := errors.AsType[*admission.Full](err)
	return full
}

// TestSpareLeavesAQuarter checks that what can wait leaves room for what cannot.
func TestSpareLeavesAQuarter(t *testing.T) {
	t.Parallel()
	a := standard()
	for full := error(nil); full == nil; {
		_, full = a.Join(jane, admission.Cost{Kind: admission.Answer, Bytes: mib, Leaves: 2})
	}
	if got := a.HeldBy(jane, admission.Answer); got/mib != users/mib/4*3/4 {
		t.Errorf("want three quarters of what one user may have, got %d", got)
	}
	if _, err := a.Join(jane, admission.Cost{Kind: admission.Answer, Bytes: mib}); err != nil {
		t.Errorf("want the rest for what cannot wait, got %v", err)
	}
}

// TestEverybodyIsNextSoon has one owner ask for a thousand times as much as another one.
func TestEverybodyIsNextSoon(t *testing.T) {
	t.Parallel()
	a := standard()
	ask := func(who admission.Owner, seats int, member any) *admission.Place {
		place, err := a.Join(who, admission.Cost{Kind: admission.Forward, Seats: seats, Member: member})
		if err != nil {
			t.Fatal(err)
		}
		return place
	}
	var greedy []*admission.Place
	for range 1000 {
		greedy = append(greedy, ask(user(1), 1, "read"))
	}
	if begun(greedy) != 16 {
		t.Errorf("want an eighth of the seats for the reads of one user, got %d", begun(greedy))
	}
	if !ask(user(1), 1, "write").Begun() {
		t.Error("want the writes of the same user not to wait for the reads")
	}
	for i := range 8 {
		for range 100 {
			ask(user(2+i), 1, "read")
		}
	}
	late := ask(jane, 1, "read")
	if late.Begun() {
		t.Fatal("want all seats taken")
	}
	for _, one := range greedy[:5] {
		one.Leave()
	}
	if !late.Begun() {
		t.Error("want those who have least to be next")
	}
}

func begun(all []*admission.Place) (n int) {
	for _, place := range all {
		if place.Begun() {
			n++
		}
	}
	return n
}

// TestHeavyWorkIsNotOvertakenForEver has heavy requests wait while light ones keep coming.
func TestHeavyWorkIsNotOvertakenForEver(t *testing.T) {
	t.Parallel()
	a := standard()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stop := make(chan struct{})
	var group sync.WaitGroup
	for i := range 256 {
		group.Go(func() {
			for {
				place, err := a.Enter(ctx, user(i), admission.Cost{Kind: admission.Forward})
				if err != nil {
					t.Error(err)
					return
				}
				place.Leave()
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 20 {
		place, err := a.Enter(ctx, jane, admission.Cost{Kind: admission.Forward, Seats: admission.LongSeats})
		if err != nil {
			t.Error("want the heavy request to get its seats", err)
			break
		}
		place.Leave()
	}
	close(stop)
	group.Wait()
	for _, usage := range a.Usage() {
		if usage.Taken != 0 || usage.Waiting != 0 || usage.Bytes != 0 {
			t.Errorf("want nothing left, got %+v", usage)
		}
	}
}

// TestReadsYield has one user read as much as it may, alone and while somebody else reads. The seconds between are of
// synctest's clock, which takes no time.
func TestReadsYield(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const alone, amongOthers, asked = 16, 4, 20
		a, jane := standard(), jane
		var all []*admission.Place
		enter := func(who admission.Owner, member string, yields bool) {
			t.Helper()
			place, err := a.Join(who, admission.Cost{Kind: admission.Forward, Member: member, Yields: yields})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, place)
		}
		readAll := func(want int, when string) {
			t.Helper()
			for range asked {
				enter(jane, "reads", true)
			}
			begun := 0
			for _, place := range all {
				if place.Begun() {
					begun++
				}
			}
			if begun != want {
				t.Errorf("%s: want %d at a time, got %d", when, want, begun)
			}
			for _, place := range all {
				place.Leave()
			}
			all = nil
		}
		readAll(alone, "alone")
		enter(user(1), "reads", true)
		enter(user(1), "reads", true)
		readAll(2+amongOthers, "with two of another user")
		enter(jane, "writes", false)
		readAll(1+amongOthers, "with a write")
		time.Sleep(time.Second)
		readAll(alone, "a second later")
		time.Sleep(time.Second)
		enter(user(1), "reads", true)
		readAll(1+amongOthers, "with another user again")
		time.Sleep(time.Second)
		enter(user(1), "writes", false)
		readAll(1+amongOthers, "with one who came before")
		time.Sleep(time.Second)
		jane = user(2)
		readAll(alone, "alone, a second after another user")
	})
}

// TestAConnectionHasFewQuestions has one connection ask for much, and another one from the same address.
func TestAConnectionHasFewQuestions(t *testing.T) {
	t.Parallel()
	a := standard()
	ask := func(member any) error {
		_, err := a.Join(nobody, admission.Cost{Kind: admission.TokenReview, Member: member})
		return err
	}
	refused := 0
	for range 100 {
		if isFull(ask(1)) {
			refused++
		}
	}
	if refused != 84 {
		t.Errorf("want 16 let wait, got %d", 100-refused)
	}
	if err := ask(2); err != nil {
		t.Errorf("want the other connection not to notice, got %v", err)
	}
}

func TestWaitsEnd(t *testing.T) {
	t.Parallel()
	a := standard()
	for range 24 {
		if _, err := a.Join(user(1), admission.Cost{Kind: admission.TokenReview}); err != nil && !isFull(err) {
			t.Fatal(err)
		}
		_, _ = a.Join(user(2), admission.Cost{Kind: admission.TokenReview})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("left")
	cancel(left)
	if _, err := a.Enter(ctx, jane, admission.Cost{Kind: admission.TokenReview}); !errors.Is(err, left) {
		t.Errorf("want the wait to end with its request, got %v", err)
	}
}

// TestDebt has a user owe, and others not notice.
func TestDebt(t *testing.T) {
	t.Parallel()
	a := standard()
	if a.Owe("jane", admission.Burst/2); a.Due("jane") > 0 {
		t.Error("want a little let pass")
	}
	if a.Owe("jane", admission.Burst); a.Due("jane") <= 0 || a.Due("joe") > 0 {
		t.Error("want one to wait, and nobody else")
	}
	if a.Owe("jane", time.Hour); a.Due("jane") > 2*time.Second {
		t.Errorf("want a wait to have an end, got %v", a.Due("jane"))
	}
	var few, many admission.Account
	a.OweStranger(&few, 2*admission.Burst, 1)
	a.OweStranger(&many, 2*admission.Burst, 100)
	if now := time.Now(); few.Due(now) <= 0 || many.Due(now) <= few.Due(now) {
		t.Error("want strangers to pay more slowly the more they are")
	}
	for i := range 10_000 {
		a.Owe(fmt.Sprint(i), time.Microsecond)
	}
	if a.Due("jane") <= 0 {
		t.Error("want who owes much not to be forgotten")
	}
}
