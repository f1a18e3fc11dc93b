package proxy

import (
	"net"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// TestTwoUsersOfOneConnection has two users authenticate on a connection at the same moment, again and again, and
// either begins first. The connection has one of them, whose share it counts against.
func TestTwoUsersOfOneConnection(t *testing.T) {
	t.Parallel()
	const rounds = 4000
	b := budget.New(budget.Defaults(), nil)
	all := newClientConnections(b, 1)
	for i := range rounds {
		users := []string{"ann", "ben"}
		if i%2 == 1 {
			users[0], users[1] = users[1], users[0]
		}
		ours, theirs := net.Pipe()
		conn := all.admit(ours)
		var both sync.WaitGroup
		for _, user := range users {
			both.Go(func() {
				if err := conn.identify(user); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		owner := conn.client().User
		if got := b.HeldByUser(budget.Connections, owner); got != 1 {
			t.Fatalf("round %d: want it counted for %q, got %d", i, owner, got)
		}
		_, _ = conn.Close(), theirs.Close()
	}
	if got := b.Held(budget.Connections); got != 0 {
		t.Errorf("want nothing held, got %d", got)
	}
}

// TestConnectionsCountForOne looks for whom connections count, by address and by user, while some are closed.
func TestConnectionsCountForOne(t *testing.T) {
	t.Parallel()
	const here, there = "192.0.2.1", "192.0.2.2"
	all := newClientConnections(budget.New(budget.Defaults(), nil), 1)
	var open []*clientConn
	for _, address := range []string{here, here, here, there} {
		open = append(open, all.admit(from{address: address}))
	}
	check := func(strangers, ofUser map[string]int) {
		t.Helper()
		if diff := cmp.Diff([]map[string]int{strangers, ofUser}, []map[string]int{all.strangers, all.ofUser}); diff != "" {
			t.Errorf("by address and by user (-want +got):\n%s", diff)
		}
	}
	check(map[string]int{here: 3, there: 1}, map[string]int{})
	for i, user := range map[int]string{0: "jane", 3: "jane"} {
		if err := open[i].identify(user); err != nil {
			t.Fatal(err)
		}
	}
	check(map[string]int{here: 2}, map[string]int{"jane": 2})
	_ = open[0].Close()
	_ = open[1].Close()
	check(map[string]int{here: 1}, map[string]int{"jane": 1})
	_ = open[1].identify("joe") // which is closed
	check(map[string]int{here: 1}, map[string]int{"jane": 1})
	_ = open[2].Close()
	_ = open[3].Close()
	check(map[string]int{}, map[string]int{})
}
