package proxy

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// TestKnownCertificates has a client connect whose certificate was verified before. The connection counts for the user
// before anything is asked on it. That of a certificate which is not known yet does not.
func TestKnownCertificates(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	jane := clientCertificate(t, p.signerCA, "jane")
	held := func(user string) int64 { return p.budget.HeldByUser(budget.Connections, user) }
	first := p.rawHTTP2(t, jane)
	p.connection(t)
	if got := held("jane"); got != 0 {
		t.Fatalf("want a new certificate to count for no user, got %d connections", got)
	}
	first.request(t, 1, false, false, pseudo("GET", "/api/v1/pods")...)
	first.answer(t, 1)
	eventually(t, func() bool { return held("jane") == 1 })
	p.rawHTTP2(t, jane)
	eventually(t, func() bool { return held("jane") == 2 && p.budget.HeldUnauthenticated(budget.Connections) == 0 })
}

// TestPossessionComesFirst has a connection on which a known certificate has been shown, but not yet its key.
func TestPossessionComesFirst(t *testing.T) {
	t.Parallel()
	all := newClientConnections(budget.New(budget.Defaults(), nil), 1)
	c := all.admit(from{address: crowdsSource})
	defer c.Close() //nolint:errcheck // it goes nowhere
	shaken := make(chan struct{})
	c.received.user, c.received.shaken = "jane", shaken
	for _, want := range []int64{0, 1} {
		c.recognize()
		if got := all.budget.HeldByUser(budget.Connections, "jane"); got != want {
			t.Errorf("want %d connections counted for the user, got %d", want, got)
		}
		if want == 0 {
			close(shaken)
		}
	}
}

// TestFullUsersAreNotRead has a user with as many requests as one may have, and further connections. None of these is
// read until there is room, and then one after the other. Those of other users, and those on which something is being
// served, are read as ever.
func TestFullUsersAreNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waiting = 3
		limits := budget.Defaults()
		limits[budget.Requests][budget.PerUser] = 1
		all := newClientConnections(budget.New(limits, nil), 1)
		defer closeAll(all)
		open := func(user string) *clientConn {
			c := all.admit(from{address: crowdsSource})
			if err := c.identify(user); err != nil {
				t.Fatal(err)
			}
			return c
		}
		request, err := all.budget.Acquire(budget.Client{Address: crowdsSource, User: "greedy"}, budget.Requests, 1)
		if err != nil {
			t.Fatal(err)
		}
		busy := open("greedy")
		busy.serving.Add(1)
		for name, c := range map[string]*clientConn{"a busy one": busy, "another user's": open("jane")} {
			if len(reads(c)) != 1 {
				t.Errorf("want %s read at once", name)
			}
		}
		results := make(chan error, waiting)
		for range waiting {
			c := open("greedy")
			go func() {
				_, err := c.Read(make([]byte, 1))
				results <- err
			}()
		}
		time.Sleep(longestRoomPause / 2)
		synctest.Wait()
		if len(results) != 0 {
			t.Fatalf("want none read while there is no room, got %d", len(results))
		}
		request.Release()
		began := time.Now()
		for i := range waiting {
			if err := <-results; err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took < time.Duration(i)*roomPause {
				t.Errorf("want one in each %v, got %d after %v", roomPause, i+1, took)
			}
		}
	})
}

// TestUsersWhoMisuseStreamsAreReadInTurn has a user whose streams come to nothing, and further connections. They are read
// one after the other. Those of other users, and those on which something is being served, are read as ever. Another user
// who misuses streams has the next turn but one.
func TestUsersWhoMisuseStreamsAreReadInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := newClientConnections(budget.New(budget.Defaults(), nil), 1)
		defer closeAll(all)
		open := func(user string) *clientConn {
			c := all.admit(from{address: crowdsSource})
			if err := c.identify(user); err != nil {
				t.Fatal(err)
			}
			return c
		}
		for _, user := range []string{"greedy", "second"} {
			misused := all.budget.Limits()[budget.Resets][budget.PerUser]
			all.budget.Misused(budget.Client{Address: crowdsSource, User: user}, misused+100)
		}
		busy := open("greedy")
		busy.serving.Add(1)
		others := open("jane")
		began := time.Now()
		order := make(chan string, 4)
		for _, user := range []string{"greedy", "greedy", "greedy", "second"} {
			read := reads(open(user))
			go func() {
				if err := <-read; err != nil {
					t.Error(err)
				}
				order <- user
			}()
			synctest.Wait()
		}
		for name, c := range map[string]*clientConn{"a busy one": busy, "another user's": others} {
			if len(reads(c)) != 1 {
				t.Errorf("want %s read at once", name)
			}
		}
		for i, want := range []string{"greedy", "greedy", "second", "greedy"} {
			if got, took := <-order, time.Since(began); got != want || took != time.Duration(i)*roomPause {
				t.Errorf("want one of %s as number %d, after %v each, got one of %s after %v", want, i, roomPause, got, took)
			}
		}
		time.Sleep(roomPause)
	})
}

// TestFullUsersAreRefusedInTheEnd has no room come. Then a connection is read nevertheless: its requests get an answer.
func TestFullUsersAreRefusedInTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limits := budget.Defaults()
		limits[budget.Requests][budget.PerUser] = 1
		all := newClientConnections(budget.New(limits, nil), 1)
		defer closeAll(all)
		if _, err := all.budget.Acquire(budget.Client{User: "greedy"}, budget.Requests, 1); err != nil {
			t.Fatal(err)
		}
		c := all.admit(from{address: crowdsSource})
		if err := c.identify("greedy"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := <-reads(c); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != longestRoomPause {
			t.Errorf("want it read after %v, got %v", longestRoomPause, took)
		}
	})
}
