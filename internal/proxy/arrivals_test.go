package proxy

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// TestArrivals reads from clients while more requests have come than can be looked at. They wait, for a while. Users are
// read while others have much to do, such as an event for many watches.
func TestArrivals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		user             string
		before           bool // its certificates have been read
		runnable         int64
		undecided, freed int64
		waits, atLeast   time.Duration
	}{
		"nothing has come":           {before: true, runnable: maxArriving},
		"many goroutines":            {before: true, runnable: maxArriving + 1, waits: longestArrivalPause},
		"many undecided":             {before: true, undecided: maxArriving + 1, waits: longestArrivalPause},
		"some of each":               {before: true, runnable: maxArriving, undecided: 1, waits: longestArrivalPause},
		"many, until they are fewer": {before: true, undecided: maxArriving + 1, freed: 1, waits: 20 * arrivalPause},
		"a user":                     {before: true, user: "jane", runnable: maxArriving + 1},
		"a user, many undecided":     {before: true, user: "jane", undecided: maxArriving + 1, waits: longestArrivalPause},
		"a handshake":                {runnable: maxArriving + 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				all := newClientConnections(budget.New(budget.Defaults(), nil), 1)
				all.arrivals.look = func() int64 { return test.runnable }
				all.arrivals.undecided.Store(test.undecided)
				c := all.admit(deadEnd{})
				c.certified.Store(test.before)
				if test.user != "" {
					if err := c.identify(test.user); err != nil {
						t.Fatal(err)
					}
				}
				if test.freed > 0 {
					time.AfterFunc(test.waits, func() { all.arrivals.undecided.Add(-test.freed) })
				}
				began := time.Now()
				if _, err := c.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				if waited := time.Since(began); waited < test.waits || waited > test.waits+arrivalPause {
					t.Errorf("want the read to wait for %v, got %v", test.waits, waited)
				}
				_ = c.Close()
			})
		})
	}
}

// TestArrivalsAreCounted has requests pass the gate, wait there, and give up. None of them is counted as one about which
// nothing was decided.
func TestArrivalsAreCounted(t *testing.T) {
	t.Parallel()
	b := budget.New(budget.Defaults(), nil)
	all := newClientConnections(b, 1)
	c := all.admit(deadEnd{})
	var inside atomic.Int64
	release := make(chan struct{})
	handler := holdBack(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		inside.Add(1)
		<-release
	}), b)
	ended := make(chan struct{}, 2*maxUndecided)
	for range 2 * maxUndecided {
		go func() {
			defer func() { ended <- struct{}{} }()
			defer func() { _ = recover() }() // of those that give up
			req := httptest.NewRequestWithContext(withConnection(t.Context(), c), http.MethodGet, "/", nil)
			req.ProtoMajor = 2
			handler.ServeHTTP(httptest.NewRecorder(), req)
		}()
	}
	eventually(t, func() bool {
		_, waiting := c.gate.counts()
		return inside.Load() == maxUndecided && waiting == maxUndecided &&
			b.Held(budget.Bytes) > 0 && all.arrivals.undecided.Load() == 0
	})
	_ = c.Close()
	close(release)
	for range 2 * maxUndecided {
		<-ended
	}
	if got := all.arrivals.undecided.Load(); got != 0 {
		t.Errorf("want none left, got %d", got)
	}
}

// TestArrivalsEnd counts a request until it is admitted, or over.
func TestArrivalsEnd(t *testing.T) {
	t.Parallel()
	b := budget.New(budget.Defaults(), nil)
	all := newClientConnections(b, 1)
	c := all.admit(deadEnd{})
	defer c.Close() //nolint:errcheck // it goes nowhere
	check := func(when string, want int64) {
		t.Helper()
		if got := all.arrivals.undecided.Load(); got != want {
			t.Errorf("%s: want %d counted, got %d", when, want, got)
		}
	}
	admitted := admit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { check("admitted", 0) }), b, nil)
	for _, next := range []http.Handler{admitted, http.NotFoundHandler()} {
		setUp(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			check("arrived", 1)
			next.ServeHTTP(w, req)
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(withConnection(t.Context(), c), "GET", "/", nil))
		check("over", 0)
	}
}

// TestRunnableGoroutines checks that this Go tells how many goroutines wait for a processor: without that, nothing would
// be held back.
func TestRunnableGoroutines(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	defer close(stop)
	for range 200 {
		go func() {
			for !isClosed(stop) { // always has something to do
			}
		}()
	}
	eventually(t, func() bool { return runnableGoroutines() > 0 })
}
