package flowcontrol_test

import (
	"runtime"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

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
		holder, err := a.Enqueue(flowcontrol.Flow{Address: "192.0.2.1"}, preAuth)
		if err != nil {
			t.Fatal(err)
		}
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
