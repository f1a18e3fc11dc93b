package proxy

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// TestRefusalsThatAreNotReadAreBounded has a user ask for more than fits into the share, and read no answer. Some refusals
// wait for the user, the other requests are reset.
func TestRefusalsThatAreNotReadAreBounded(t *testing.T) {
	t.Parallel()
	const fit, waiting, more = 2, 3, maxRefusals - 1
	p := startProxy(t,
		limit(budget.Requests, budget.PerUser, fit), limit(budget.Bytes, budget.PerUser, waiting*refusalBytes))
	release := make(chan struct{})
	p.api.set(func() {
		p.api.serve = func(_ http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/slow" {
				select {
				case <-release:
				case <-req.Context().Done():
				}
			}
		}
	})
	c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "mallory"))
	c.readNothing(t)
	slow := func(int) [][2]string { return pseudo("GET", "/slow") }
	for i := range fit {
		if err := c.flood(t, i, 1, false, slow); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return p.api.arrived.Load() == int64(i+1) })
	}
	if err := c.flood(t, fit, more, false, slow); err != nil {
		t.Fatal(err)
	}
	refused, reset := 0, 0
	for refused+reset < more {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("after %d refusals and %d resets: %v", refused, reset, err)
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			if got := frame.PseudoValue("status"); got != "429" {
				t.Errorf("want 429, got %s", got)
			}
			refused++
		case *http2.RSTStreamFrame:
			reset++
		}
	}
	if refused != waiting || reset != more-waiting {
		t.Errorf("want %d refused and %d reset, got %d and %d", waiting, more-waiting, refused, reset)
	}
	if got := p.connection(t).refused.Load(); got != more {
		t.Errorf("want %d counted as refused, got %d", more, got)
	}
	if got := p.budget.HeldByUser(budget.Bytes, "mallory"); got != waiting*refusalBytes {
		t.Errorf("want the refusals that wait counted, got %d bytes", got)
	}
	if got := p.get(t, p.as(t, "jane"), "/a", nil); got.Code != http.StatusOK {
		t.Errorf("want another user served, got %d", got.Code)
	}
	close(release)
	c.readEverything(t)
	go func() { _ = c.answers(t) }()
	eventually(t, func() bool { return p.budget.HeldByUser(budget.Bytes, "mallory") == 0 })
}

// atGates counts the requests that have passed the gates of all connections, and those that wait there.
func (p *proxy) atGates() (inside, waiting int) {
	p.open.mu.Lock()
	defer p.open.mu.Unlock()
	for one := range p.open.open {
		in, wait := one.gate.counts()
		inside, waiting = inside+in, waiting+wait
	}
	return inside, waiting
}

// TestWaitingRequestsCount has strangers fill the gates of two connections with requests whose bodies do not come, and
// others wait behind them. What these take is bounded: the connection on which they have waited longer is closed. A user
// gets in meanwhile.
func TestWaitingRequestsCount(t *testing.T) {
	t.Parallel()
	const fit, first, second = 50, 30, 63 // what has just been read may count for a moment, too
	p := startProxy(t, limit(budget.Bytes, budget.Unauthenticated, fit*(waitingBytes+small/8)))
	wait := func(before, n int) {
		c := p.rawHTTP2(t, nil)
		for i := range uint32(maxUndecided) {
			c.request(t, 2*i+1, true, false, append(pseudo("POST", loginPath), [2]string{"content-length", "10"})...)
		}
		eventually(t, func() bool { inside, _ := p.atGates(); return inside == before+maxUndecided })
		if err := c.flood(t, maxUndecided, n, false, func(int) [][2]string { return pseudo("GET", "/a") }); err != nil {
			t.Fatal(err)
		}
		go func() { _ = c.answers(t) }()
	}
	wait(0, first)
	old := p.connection(t)
	eventually(t, func() bool { _, waiting := p.atGates(); return waiting == first })
	wait(maxUndecided, second)
	eventually(t, func() bool {
		_, waiting := p.atGates()
		return isClosed(old.gone) && waiting >= fit/2 && waiting < second
	})
	if held := p.budget.HeldUnauthenticated(budget.Bytes); held < fit/2*waitingBytes {
		t.Errorf("want those that wait counted, got %d bytes", held)
	}
	if got := p.get(t, p.as(t, "jane"), "/a", nil); got.Code != http.StatusOK {
		t.Errorf("want a user served, got %d", got.Code)
	}
}

// TestTrailersOfStrangersCount sends trailers without an end beside the body of a login.
func TestTrailersOfStrangersCount(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	c := p.rawHTTP2(t, nil)
	c.request(t, 1, true, false, append(pseudo("POST", loginPath), [2]string{"content-length", "10"})...)
	conn := p.connection(t)
	eventually(t, func() bool { return conn.handling.Load() == 1 })
	const size = 30_000 // fields of one byte
	c.begin(t, size)
	const much = (size - unusedTolerated) * unusedHTTP2 // the rest is from the reserve
	eventually(t, func() bool { return p.budget.HeldUnauthenticated(budget.Bytes) >= much })
}

// from is a connection from an address.
type from struct {
	deadEnd
	address string
}

func (f from) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(f.address), Port: 1}
}

// TestManyAddresses has a newcomer from each of many addresses. They replace each other, and not the few connections of
// another address. An address with many of them comes first.
func TestManyAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const room, few = 64, 64 / 16
		limits := budget.Defaults()
		limits[budget.Connections][budget.Unauthenticated] = room
		all := newClientConnections(budget.New(limits, nil), 1)
		next := 0
		admit := func(address string, n int) (some []*clientConn) {
			for range n {
				some = append(some, all.admit(from{address: address}))
				reads(some[len(some)-1])
				time.Sleep(2 * newcomersTime / room)
			}
			return some
		}
		attack := func(n int) {
			for range n {
				next++
				admit(fmt.Sprintf("198.18.%d.%d", next/250, next%250), 1)
			}
		}
		alive := func(some []*clientConn) int {
			n := 0
			for _, one := range some {
				if !isClosed(one.gone) {
					n++
				}
			}
			return n
		}
		attack(room)
		time.Sleep(newcomersTime)
		honest := admit("192.0.2.1", few)
		attack(room - few)
		if got := alive(honest); got != few {
			t.Errorf("want all of %d connections left alone as long as there are older ones, got %d", few, got)
		}
		time.Sleep(newcomersTime)
		admit("192.0.2.2", 2*few)
		before := all.strangers["192.0.2.2"]
		attack(few)
		if got := all.strangers["192.0.2.2"]; before <= few || got != few {
			t.Errorf("want an address to lose what it has more than others, and to keep %d, got %d of %d", few, got, before)
		}
		closeAll(all)
	})
}

// TestWhoMakesRoom has connections of users and strangers open, and looks which of them makes room for a newcomer.
func TestWhoMakesRoom(t *testing.T) {
	t.Parallel()
	type conn struct {
		user, address string
		idle, age     time.Duration
		serving       int64
	}
	const here, there, other = "192.0.2.1", "192.0.2.2", "192.0.2.3"
	const short, long = 2 * idleBeforeEviction, 4 * idleBeforeEviction
	for name, test := range map[string]struct {
		open []conn // the first has to go
		same bool   // the newcomer's address is full, which is here
		none bool   // none of them has to go
	}{
		"a stranger before users": {open: []conn{
			{address: there, age: short, idle: short}, {user: "jane", address: there, age: long, idle: long},
		}},
		"a stranger who is served before users": {open: []conn{
			{address: there, age: short, serving: 1}, {user: "jane", address: there, age: long, idle: long},
		}},
		"the oldest stranger": {open: []conn{
			{address: there, age: long, idle: short}, {address: other, age: short, idle: short},
		}},
		"an idle stranger": {open: []conn{
			{address: there, age: short, idle: short}, {address: other, age: long, serving: 1},
		}},
		"a stranger of the address with most": {open: []conn{
			{address: there, age: short, idle: short},
			{address: there, age: short / 2, idle: short},
			{address: there, age: short / 2, idle: short},
			{address: other, age: long, idle: long},
		}},
		"the oldest one where addresses have few": {open: []conn{
			{address: other, age: long, idle: short}, {address: there, age: short, idle: short}, {address: there, age: short},
		}},
		"one of the user with most": {open: []conn{
			{user: "mallory", address: there, age: short, idle: short},
			{user: "mallory", address: other, age: short, serving: 1},
			{user: "jane", address: other, age: long, idle: long},
		}},
		"the one that is idle for longest": {open: []conn{
			{user: "jane", address: there, age: short, idle: long}, {user: "joe", address: there, age: long, idle: short},
		}},
		"none that is being served": {none: true, open: []conn{
			{user: "mallory", address: there, age: long, idle: long, serving: 1},
			{user: "mallory", address: there, age: long, idle: long, serving: 1},
		}},
		"none that was used a moment ago": {none: true, open: []conn{
			{user: "mallory", address: there, age: long}, {user: "mallory", address: there, age: long},
		}},
		"one of that address": {same: true, open: []conn{
			{user: "jane", address: here, age: short, idle: short}, {address: there, age: long, idle: long},
		}},
		"none of another address": {same: true, none: true, open: []conn{{address: there, age: long, idle: long}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limits := budget.Defaults()
			limits[budget.Connections][budget.Unauthenticated] = 2 * 16 // two of an address are few
			all, now := newClientConnections(budget.New(limits, nil), 1), time.Now()
			var open []*clientConn
			for _, conn := range test.open {
				one := &clientConn{all: all, address: conn.address, accepted: now.Add(-conn.age)}
				one.used.Store(now.Add(-conn.idle).UnixNano())
				one.serving.Store(conn.serving)
				if conn.user != "" {
					one.user.Store(&conn.user)
				}
				all.open[one] = struct{}{}
				all.count(one, 1)
				open = append(open, one)
			}
			want := 0
			if test.none {
				want = -1
			}
			victim, better, wait := all.victim(here, test.same)
			if got := slices.Index(open, victim); got != want || !better && wait != 0 {
				t.Errorf("want number %d to make room at once, got %d, and to wait for %v", want, got, wait)
			}
		})
	}
}

func TestHostOf(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.1:443": "192.0.2.1", "[::ffff:192.0.2.1]:443": "192.0.2.1", "[2001:db8:1:2:3::4]:443": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:443": "fe80::/64", "pipe": "pipe", "@:1": "@",
	} {
		if got := hostOf(address); got != want {
			t.Errorf("want %s for %s, got %s", want, address, got)
		}
	}
}

// TestTrailersOfUsersCount has a user send trailers without an end beside bodies, on more connections than there is
// memory for. They count, and a connection that has held much for long makes room for another one.
func TestTrailersOfUsersCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size, share = 30_000, 2 << 20
		limits := budget.Defaults()
		limits[budget.Bytes][budget.PerUser] = share
		b := budget.New(limits, nil)
		all := newClientConnections(b, 1)
		var conns []*clientConn
		for range share/(size*unusedWithBodyHTTP2) + 1 {
			c := all.admit(deadEnd{})
			if err := c.identify("mallory"); err != nil {
				t.Fatal(err)
			}
			c.certified.Store(true)
			c.unused.bodies.Add(1)
			conns = append(conns, c)
			go func() { _ = c.countUnused(size) }()
			synctest.Wait()
		}
		if got := all.evicted.Load(); got != 0 || all.headers.waiting.Load() != 1 {
			t.Errorf("want the last one to wait, as bodies may come slowly, got %d closed", got)
		}
		time.Sleep(shortPatience + evictionPause)
		synctest.Wait()
		if got := all.evicted.Load(); got != 1 || !isClosed(conns[0].gone) || all.headers.waiting.Load() != 0 {
			t.Errorf("want one of long ago closed, got %d", got)
		}
		if got := b.HeldByUser(budget.Bytes, "mallory"); got > share || got < share/2 {
			t.Errorf("want what was sent counted, up to %d bytes, got %d", share, got)
		}
		for _, c := range conns {
			_ = c.Close()
		}
	})
}
