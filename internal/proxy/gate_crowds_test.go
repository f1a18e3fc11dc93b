package proxy

import (
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// TestCrowds has requests wait on many connections. For each request for which there is no room, one look finds the
// connection on which requests have waited for the longest time, however many connections there are.
func TestCrowds(t *testing.T) {
	t.Parallel()
	const many = 100
	all := newClientConnections(budget.New(budget.Defaults(), nil), 1)
	var conns []*clientConn
	for range many {
		c := all.admit(deadEnd{})
		for range maxUndecided {
			if c.gate.join() != nil {
				t.Fatal("want as many to pass as may be looked at")
			}
		}
		conns = append(conns, c)
	}
	longest := func() *clientConn { return all.longestWaiting(conns[0], budget.Unauthenticated) }
	if got := longest(); got != nil {
		t.Error("want none as long as nothing waits")
	}
	var turns []*waiter
	for i := range conns { // the last one first
		c := conns[many-1-i]
		turns = append(turns, c.gate.join())
		c.gate.join()
	}
	if got := longest(); got != conns[many-1] {
		t.Error("want the connection on which requests began to wait first")
	}
	conns[many-1].abort()
	if got := longest(); got != conns[many-2] {
		t.Error("want the next one as soon as the first is closed")
	}
	if conns[many-1].gate.join(); longest() != conns[many-2] {
		t.Error("want a closed connection never again, though requests of it still come")
	}
	conns[many-2].gate.leave()
	if !isClosed(turns[1].turn) || longest() != conns[many-2] {
		t.Error("want a connection to stay in its place as long as anything waits on it")
	}
	conns[many-2].gate.leave()
	if got := longest(); got != conns[many-3] {
		t.Error("want a connection forgotten when nothing waits on it any more")
	}
	conns[0].address = "192.0.2.99"
	if got := all.longestWaiting(conns[0], budget.PerAddress); got != conns[0] {
		t.Error("want one of the same address where that has too much")
	}
	for _, c := range conns {
		_ = c.Close()
	}
	if got := all.crowds.conns.Len(); got != 0 {
		t.Errorf("want nothing left, got %d connections", got)
	}
}
