package proxy

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// TestWatchesThatWaitWithAllObjects opens watches of more than any window and reads none. Few of them wait: the API
// server has a seat for each until its objects are taken.
func TestWatchesThatWaitWithAllObjects(t *testing.T) {
	t.Parallel()
	const fit, opened = 2, 5
	p := startProxy(
		t,
		limit(budget.Unread, budget.PerUser, fit),
		func(_ *proxy, o *Options) { o.Work.LongAnswersPerUser = opened },
	)
	var busy atOnce
	events := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, _ *http.Request) {
			defer busy.count()()
			_, _ = w.Write(events)
		}
	})
	c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "mallory"))
	c.readNothing(t)
	for i := range opened {
		c.request(t, uint32(2*i+1), false, false, pseudo("GET", "/api/v1/pods?watch=1")...)
	}
	eventually(t, func() bool {
		return busy.all.Load() == opened && busy.now.Load() == fit &&
			p.budget.HeldByUser(budget.Unread, "mallory") == fit
	})
}

// TestTheProxyAsksForTurns looks at which turns requests of each kind get on their way through the proxy.
func TestTheProxyAsksForTurns(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	jane := p.as(t, "jane")
	for _, test := range []struct {
		path               string
		all, long, watches int64 // so far
	}{
		{"/api/v1/namespaces/d/pods/one", 1, 0, 0},
		{"/api/v1/namespaces/d/secrets", 2, 1, 0},
		{"/api/v1/namespaces/d/pods?watch=1", 3, 1, 1},
		{"/api/v1/namespaces/d/pods?watch=1&resourceVersion=5", 4, 1, 1},
	} {
		if got := p.get(t, jane, test.path, nil); got.Code != http.StatusOK {
			t.Fatalf("%s: want 200, got %d", test.path, got.Code)
		}
		all, long, watches := p.work.All.Begun.Load(), p.work.AllLong.Begun.Load(), p.work.Watches.Begun.Load()
		if all != test.all || long != test.long || watches != test.watches {
			t.Errorf("%s: want %d, %d and %d turns so far, got %d, %d and %d",
				test.path, test.all, test.long, test.watches, all, long, watches)
		}
	}
}

// TestTheProxyReservesAnswers asks twice for an answer that is longer than the user's share. The API server does not hear
// of the second request, as the length is known then.
func TestTheProxyReservesAnswers(t *testing.T) {
	t.Parallel()
	const share = 1 << 20
	p := startProxy(t, limit(budget.Bytes, budget.PerUser, share))
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2*share)) }
	})
	jane := p.as(t, "jane")
	for i, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		if got := p.get(t, jane, "/api/v1/namespaces/d/secrets", nil); got.Code != want {
			t.Errorf("want %d for number %d, got %d", want, i, got.Code)
		}
		eventually(t, func() bool { return p.budget.Held(budget.Requests) == 0 })
	}
	if got := p.api.arrived.Load(); got != 1 {
		t.Errorf("want one request at the API server, got %d", got)
	}
}
