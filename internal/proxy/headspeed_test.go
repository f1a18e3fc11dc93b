package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// TestLargeHeadsTakeTime has heads come on a connection, and looks how long it is not read, and others are not.
func TestLargeHeadsTakeTime(t *testing.T) {
	t.Parallel()
	const second = headBurst + headSpeed // of bytes: as many as make it wait for a second
	for name, test := range map[string]struct {
		user, other string // of the connection, and of another one; "" for none
		bytes       int64
		protocol    int
		want, wants time.Duration // for how long each of them waits
	}{
		"a few":                        {user: "jane", other: "jane", bytes: headBurst, protocol: 2},
		"many":                         {user: "jane", other: "jane", bytes: second, protocol: 2, want: time.Second, wants: time.Second},
		"beside another user":          {user: "jane", other: "john", bytes: second, protocol: 2, want: time.Second},
		"beside a client without user": {user: "jane", bytes: second, protocol: 2, want: time.Second},
		"without a user":               {bytes: second, protocol: 2, want: time.Second},
		"without a user, beside one":   {other: "jane", bytes: second, protocol: 2, want: time.Second},
		"over HTTP/1":                  {user: "jane", other: "jane", bytes: second, protocol: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				all := newClientConnections(budget.New(budget.Defaults(), nil), 1)
				var conns []*clientConn
				for _, user := range []string{test.user, test.other} {
					c := all.admit(deadEnd{})
					defer c.Close() //nolint:errcheck // of a test
					if user != "" {
						if err := c.identify(user); err != nil {
							t.Fatal(err)
						}
					}
					conns = append(conns, c)
				}
				const heads = 32
				for range heads {
					conns[0].decodedHead(test.bytes/heads, test.protocol)
				}
				began := time.Now()
				took := make(chan time.Duration, 1)
				go func() {
					conns[1].waitForHeads()
					took <- time.Since(began)
				}()
				conns[0].waitForHeads()
				if got := time.Since(began); got != test.want {
					t.Errorf("want it to wait for %v, got %v", test.want, got)
				}
				if got := <-took; got != test.wants {
					t.Errorf("want the other one to wait for %v, got %v", test.wants, got)
				}
			})
		})
	}
}

// TestShortHeadsTakeNoTime has more bytes of short heads come than there may be of large ones.
func TestShortHeadsTakeNoTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClientConnections(budget.New(budget.Defaults(), nil), 1).admit(deadEnd{})
		defer c.Close() //nolint:errcheck // of a test
		for range 2 * (headBurst + headSpeed) / small {
			c.decodedHead(small, 2)
		}
		began := time.Now()
		c.waitForHeads()
		if got := time.Since(began); got != 0 {
			t.Errorf("want it not to wait, got %v", got)
		}
	})
}

// TestWaitingForHeadsEnds closes a connection that waits, and remembers no more users than there may be.
func TestWaitingForHeadsEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := newClientConnections(budget.New(budget.Defaults(), nil), 1)
		c := all.admit(deadEnd{})
		c.decodedHead(10*headSpeed, 2)
		waited := make(chan struct{})
		go func() {
			c.waitForHeads()
			close(waited)
		}()
		synctest.Wait()
		if isClosed(waited) {
			t.Fatal("want it to wait")
		}
		_ = c.Close()
		<-waited

		for i := range 3 * maxHeadOwners {
			all.heads.decoded(fmt.Sprint("user-", i), small)
		}
		if got := len(all.heads.until); got > maxHeadOwners {
			t.Errorf("want at most %d users remembered, got %d", maxHeadOwners, got)
		}
		if all.heads.of("") == 0 {
			t.Error("want those who wait not forgotten")
		}
	})
}

// TestLargeHeadsCount asks with large heads before and after a user is known on the connection.
func TestLargeHeadsCount(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	client := p.as(t, "jane")
	for _, owner := range []string{"", "jane"} {
		if p.open.heads.of(owner) != 0 {
			t.Fatalf("want nothing counted for %q before", owner)
		}
		p.get(t, client, "/a", http.Header{"A": {strings.Repeat("b", small)}})
		if p.open.heads.of(owner) == 0 {
			t.Errorf("want the head counted for %q", owner)
		}
	}
}
