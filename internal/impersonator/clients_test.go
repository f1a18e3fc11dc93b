package impersonator

import (
	"net"
	"sync"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/impersonator/budget"
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
