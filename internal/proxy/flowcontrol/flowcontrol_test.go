package flowcontrol_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const mib = 1 << 20

// users is the memory limit of all users.
var users = standard().Memory().MostUsers

var (
	nobody = flowcontrol.Flow{Address: "10.0.0.1"}
	jane   = flowcontrol.Flow{Address: "10.0.0.1", User: "jane"}
)

func user(i int) flowcontrol.Flow {
	return flowcontrol.Flow{Address: "10.0.0.2", User: fmt.Sprint("user-", i)}
}

func standard() *flowcontrol.Controller {
	return flowcontrol.New(flowcontrol.LimitsFor(flowcontrol.DefaultMemory, 2))
}

// fill acquires memory of a resource for a flow until it is refused.
func fill(a *flowcontrol.Controller, who flowcontrol.Flow, resource flowcontrol.Resource, each int64) (got int64) {
	for {
		if _, err := a.Enqueue(who, flowcontrol.Cost{Resource: resource, Bytes: each}); err != nil {
			return got
		}
		got += each
	}
}

// TestUnauthenticatedClientsTakeNothingFromUsers fills the memory of unauthenticated clients from many addresses.
func TestUnauthenticatedClientsTakeNothingFromUsers(t *testing.T) {
	t.Parallel()
	a := standard()
	var sum int64
	for i := range 100 {
		sum += fill(a, flowcontrol.Flow{Address: fmt.Sprint(i)}, flowcontrol.Connection, flowcontrol.AcceptedBytes)
	}
	if most := a.Memory().MostUnauthenticated; sum > most {
		t.Errorf("want at most %d bytes for unauthenticated, got %d", most, sum)
	}
	if got := fill(a, jane, flowcontrol.Response, mib); got < users/8 {
		t.Errorf("want a user to get as much as ever, got %d", got)
	}
}

// TestSomethingIsLeftForTheNext has many users take all the memory they get, of every resource. The next user still
// gets enough for some requests, and the limit is never exceeded.
func TestSomethingIsLeftForTheNext(t *testing.T) {
	t.Parallel()
	for _, many := range []int{1, 3, 10, 30, 100, 1000} {
		for _, each := range []int64{64 << 10, mib} {
			a := standard()
			for i := range many {
				for resource := flowcontrol.Connection; resource <= flowcontrol.Response; resource++ {
					fill(a, user(i), resource, each)
				}
			}
			if got := a.Memory(); got.Users > users {
				t.Errorf("%d users: want at most %d bytes held, got %d", many, users, got.Users)
			}
			if got := fill(a, jane, flowcontrol.Request, 16<<10); got < 32<<10 {
				t.Errorf("%d users, %d at a time: want something left for the next, got %d", many, each, got)
			}
		}
	}
}

// TestTenThousandWatches has one user open as many watches as one replica must support.
func TestTenThousandWatches(t *testing.T) {
	t.Parallel()
	if got := fill(standard(), jane, flowcontrol.Stream, flowcontrol.StreamBytes); got < 10_000*flowcontrol.StreamBytes {
		t.Errorf("want 10000 watches, got %d", got/flowcontrol.StreamBytes)
	}
}

func TestMove(t *testing.T) {
	t.Parallel()
	a := standard()
	permit := must.Get(a.Enqueue(nobody, flowcontrol.Cost{Resource: flowcontrol.Request, Bytes: mib}))(t)
	must.Do(t, permit.Transfer(jane))
	if a.Total(nobody) != 0 || a.HeldBy(jane, flowcontrol.Request) != mib {
		t.Error("want the memory to be the user's")
	}
	fill(a, jane, flowcontrol.Request, mib)
	second := must.Get(a.Enqueue(nobody, flowcontrol.Cost{Resource: flowcontrol.Request, Bytes: mib}))(t)
	if err := second.Transfer(jane); !isFull(err) || a.Total(nobody) != mib {
		t.Errorf("want it to stay where it was, got %v", err)
	}
	if err := second.Grow(users+mib, 0); !isFull(err) {
		t.Errorf("want no more for an unauthenticated client than unauthenticated have, got %v", err)
	}
	second.Release()
	second.Release()
	if a.Total(nobody) != 0 {
		t.Error("want it given back")
	}
	var none *flowcontrol.Permit
	none.Release()
	if err := none.Transfer(jane); err != nil || !none.Granted() {
		t.Error("want nothing to be nothing")
	}
}

func isFull(err error) bool {
	_, full := errors.AsType[*flowcontrol.Full](err)
	return full
}

// TestSpareLeavesAQuarter checks that deferrable work leaves memory free for other work.
func TestSpareLeavesAQuarter(t *testing.T) {
	t.Parallel()
	a := standard()
	for full := error(nil); full == nil; {
		_, full = a.Enqueue(jane, flowcontrol.Cost{Resource: flowcontrol.Response, Bytes: mib, Leaves: 2})
	}
	if got := a.HeldBy(jane, flowcontrol.Response); got/mib != users/mib/4*3/4 {
		t.Errorf("want three quarters of what one user may have, got %d", got)
	}
	if _, err := a.Enqueue(jane, flowcontrol.Cost{Resource: flowcontrol.Response, Bytes: mib}); err != nil {
		t.Errorf("want the rest for what cannot wait, got %v", err)
	}
}

// TestEverybodyIsNextSoon has one flow ask for a thousand times as much as another.
func TestEverybodyIsNextSoon(t *testing.T) {
	t.Parallel()
	a := standard()
	ask := func(who flowcontrol.Flow, seats int, subFlowQueue any) *flowcontrol.Permit {
		cost := flowcontrol.Cost{Resource: flowcontrol.Forward, Seats: seats, SubFlow: subFlowQueue}
		return must.Get(a.Enqueue(who, cost))(t)
	}
	var greedy []*flowcontrol.Permit
	for range 1000 {
		greedy = append(greedy, ask(user(1), 1, "read"))
	}
	if granted(greedy) != 16 {
		t.Errorf("want an eighth of the seats for the reads of one user, got %d", granted(greedy))
	}
	if !ask(user(1), 1, "write").Granted() {
		t.Error("want the writes of the same user not to wait for the reads")
	}
	for i := range 8 {
		for range 100 {
			ask(user(2+i), 1, "read")
		}
	}
	late := ask(jane, 1, "read")
	if late.Granted() {
		t.Fatal("want all seats taken")
	}
	for _, one := range greedy[:5] {
		one.Release()
	}
	if !late.Granted() {
		t.Error("want those who have least to be next")
	}
}

func granted(all []*flowcontrol.Permit) (n int) {
	for _, permit := range all {
		if permit.Granted() {
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
	var stop atomic.Bool
	var flowQueue sync.WaitGroup
	for i := range 256 {
		flowQueue.Go(func() {
			for again := true; again; again = !stop.Load() {
				permit, err := a.Acquire(ctx, user(i), flowcontrol.Cost{Resource: flowcontrol.Forward})
				if err != nil {
					t.Error(err)
					return
				}
				permit.Release()
			}
		})
	}
	for range 20 {
		permit, err := a.Acquire(ctx, jane, flowcontrol.Cost{Resource: flowcontrol.Forward, Seats: flowcontrol.LongSeats})
		if err != nil {
			t.Error("want the heavy request to get its seats", err)
			break
		}
		permit.Release()
	}
	stop.Store(true)
	flowQueue.Wait()
	for _, usage := range a.Usage() {
		if usage.Taken != 0 || usage.Waiting != 0 || usage.Bytes != 0 {
			t.Errorf("want nothing left, got %+v", usage)
		}
	}
}

// TestReadsYield has one user read as much as possible, alone and while another user reads. The seconds in between are
// of synctest's fake clock.
func TestReadsYield(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const alone, amongOthers, asked = 16, 4, 20
		a, jane := standard(), jane
		var all []*flowcontrol.Permit
		enter := func(who flowcontrol.Flow, subFlowQueue string, yields bool) {
			t.Helper()
			permit := must.Get(
				a.Enqueue(who, flowcontrol.Cost{Resource: flowcontrol.Forward, SubFlow: subFlowQueue, Yields: yields}),
			)(t)
			all = append(all, permit)
		}
		readAll := func(want int, when string) {
			t.Helper()
			for range asked {
				enter(jane, "reads", true)
			}
			if got := granted(all); got != want {
				t.Errorf("%s: want %d at a time, got %d", when, want, got)
			}
			for _, permit := range all {
				permit.Release()
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
	ask := func(subFlowQueue any) error {
		_, err := a.Enqueue(nobody, flowcontrol.Cost{Resource: flowcontrol.TokenReview, SubFlow: subFlowQueue})
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
		if _, err := a.Enqueue(user(1), flowcontrol.Cost{Resource: flowcontrol.TokenReview}); err != nil && !isFull(err) {
			t.Fatal(err)
		}
		_, _ = a.Enqueue(user(2), flowcontrol.Cost{Resource: flowcontrol.TokenReview})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("left")
	cancel(left)
	if _, err := a.Acquire(ctx, jane, flowcontrol.Cost{Resource: flowcontrol.TokenReview}); !errors.Is(err, left) {
		t.Errorf("want the wait to end with its request, got %v", err)
	}
}

// TestPenalty penalizes one user; the others are not affected.
func TestPenalty(t *testing.T) {
	t.Parallel()
	a := standard()
	if a.Penalize("jane", flowcontrol.Burst/2); a.Delay("jane") > 0 {
		t.Error("want a little let pass")
	}
	if a.Penalize("jane", flowcontrol.Burst); a.Delay("jane") <= 0 || a.Delay("joe") > 0 {
		t.Error("want one to wait, and nobody else")
	}
	if a.Penalize("jane", time.Hour); a.Delay("jane") > 2*time.Second {
		t.Errorf("want a wait to have an end, got %v", a.Delay("jane"))
	}
	var few, many flowcontrol.Penalty
	a.PenalizeUnauthenticated(&few, 2*flowcontrol.Burst, 1)
	a.PenalizeUnauthenticated(&many, 2*flowcontrol.Burst, 100)
	if now := time.Now(); few.Delay(now) <= 0 || many.Delay(now) <= few.Delay(now) {
		t.Error("want unauthenticated to pay more slowly the more they are")
	}
	for i := range 10_000 {
		a.Penalize(fmt.Sprint(i), time.Microsecond)
	}
	if a.Delay("jane") <= 0 {
		t.Error("want a user who has a large penalty not to be dropped")
	}
}

// TestUsersRunBeforeUnauthenticatedClients ends the work of one unauthenticated client on a single processor, while another
// one waits and a user's goroutine is ready: the user's goroutine runs first.
//
//nolint:paralleltest // it sets the number of processors of the program
func TestUsersRunBeforeUnauthenticatedClients(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const rounds = 100
	first := 0
	for range rounds {
		a := flowcontrol.New(flowcontrol.LimitsFor(flowcontrol.DefaultMemory, 1))
		preAuth := flowcontrol.Cost{Resource: flowcontrol.PreAuth}
		holder := must.Get(a.Enqueue(flowcontrol.Flow{Address: "192.0.2.1"}, preAuth))(t)
		order := make(chan string, 2)
		go func() {
			permit, err := a.Acquire(t.Context(), flowcontrol.Flow{Address: "192.0.2.2"}, preAuth)
			if err == nil {
				order <- "client without a user"
			}
			permit.Release()
		}()
		for a.Usage()[flowcontrol.PreAuth].Waiting == 0 {
			runtime.Gosched()
		}
		go func() { order <- "user" }()
		holder.Release()
		if <-order == "user" {
			first++
		}
		<-order
	}
	if first < rounds*9/10 { // sometimes the scheduler takes from the other end of its queue
		t.Errorf("want the user first, got that %d times of %d", first, rounds)
	}
}
