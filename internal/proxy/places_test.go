package proxy

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/fairqueue"
)

const (
	crowdsPlaces = 64 // of clients without a user
	crowdsFew    = crowdsPlaces / 16
	crowdsSource = "192.0.2.1"
)

// newCrowd fills the places of clients without a user with connections from one address, and has as many of them wait for
// their handshakes. Another one has its turn until done is called.
func newCrowd(t *testing.T, waiting int) (all *clientConnections, open []*clientConn, done func()) {
	t.Helper()
	limits := budget.Defaults()
	limits[budget.Connections][budget.Unauthenticated] = crowdsPlaces
	all = newClientConnections(budget.New(limits, nil), 1)
	turn := all.turns.Join(fairqueue.Owner{Name: "another"})
	for i := range crowdsPlaces {
		one := all.admit(from{address: crowdsSource})
		open = append(open, one)
		if i < waiting {
			go func() { _ = one.beginTurn(context.Background()) }()
			synctest.Wait()
		}
		time.Sleep(time.Millisecond)
	}
	return all, open, func() {
		turn.Done()
		synctest.Wait()
		for _, one := range open { // the turns begin in order
			one.endTurn()
			synctest.Wait()
		}
	}
}

// reads has a connection be read for the first time, when it has a place, and returns what comes of it.
func reads(c *clientConn) <-chan error {
	result := make(chan error, 1)
	go func() {
		if c.place.found != nil {
			if err := c.waitForPlace(nil); err != nil {
				result <- err
				return
			}
		}
		_, err := c.Read(make([]byte, 1))
		result <- err
	}()
	synctest.Wait()
	return result
}

func closeAll(all *clientConnections) {
	all.mu.Lock()
	var some []*clientConn
	for c := range all.open {
		some = append(some, c)
	}
	for place := all.held.Front(); place != nil; place = place.Next() {
		some = append(some, place.Value.(*clientConn)) //nolint:forcetypeassert // nothing else is in the list
	}
	all.mu.Unlock()
	for _, c := range some {
		_ = c.Close()
	}
	synctest.Wait()
}

// TestNewcomersWaitForAPlace has one more client connect from an address whose connections wait for their handshakes. None
// of them is closed for it: it gets the first place that there is.
func TestNewcomersWaitForAPlace(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(*clientConn) error{
		"one is closed":   (*clientConn).Close,
		"a user is known": func(c *clientConn) error { return c.identify("jane") },
		"one is given up": func(c *clientConn) error { c.abort(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				all, open, _ := newCrowd(t, crowdsPlaces/2)
				defer closeAll(all)
				first, second := all.admit(from{address: crowdsSource}), all.admit(from{address: crowdsSource})
				firstRead, secondRead := reads(first), reads(second)
				time.Sleep(10 * heldPause)
				synctest.Wait()
				if got := all.evicted.Load(); got != 0 || len(firstRead)+len(secondRead) != 0 || all.held.Len() != 2 {
					t.Fatalf("want both to wait and nothing read, got %d waiting, %d closed", all.held.Len(), got)
				}
				if err := free(open[0]); err != nil {
					t.Fatal(err)
				}
				if err := <-firstRead; err != nil {
					t.Errorf("want the first one to be read, got %v", err)
				}
				if all.held.Len() != 1 || len(secondRead) != 0 {
					t.Error("want the second one to wait for another place")
				}
				if got := all.budget.HeldUnauthenticated(budget.Connections); got != crowdsPlaces {
					t.Errorf("want %d places taken, got %d", crowdsPlaces, got)
				}
			})
		})
	}
}

// TestPlacesDoNotWait has clients connect for whom others make room at once, as ever.
func TestPlacesDoNotWait(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		waiting int
		address string
		later   time.Duration
	}{
		"from an address of its own": {waiting: crowdsPlaces, address: "192.0.2.2"},
		"beside connections that have not said hello in time": {
			address: crowdsSource, later: newcomersTime,
		},
		"beside few that wait for their handshakes": {
			waiting: crowdsPlaces/crowdedPart - 1, address: crowdsSource, later: newcomersTime,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				all, open, _ := newCrowd(t, test.waiting)
				defer closeAll(all)
				time.Sleep(test.later)
				one := all.admit(from{address: test.address})
				if err := <-reads(one); err != nil {
					t.Error(err)
				}
				if got := all.evicted.Load(); got != 1 || !isClosed(open[0].gone) {
					t.Errorf("want the oldest one closed for it, got %d closed", got)
				}
			})
		})
	}
}

// TestManyConnectAtOnce has one client after the other connect and not say hello yet. Those that have just come are left
// alone while not too many wait for a place.
func TestManyConnectAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, open, _ := newCrowd(t, 0)
		defer closeAll(all)
		for range manyHeld {
			reads(all.admit(from{address: crowdsSource}))
		}
		if evicted, held := all.evicted.Load(), all.held.Len(); evicted != 0 || held != manyHeld {
			t.Fatalf("want all of them to wait and none closed, got %d and %d", held, evicted)
		}
		reads(all.admit(from{address: crowdsSource}))
		time.Sleep(heldPause)
		synctest.Wait()
		if evicted := all.evicted.Load(); evicted == 0 || !isClosed(open[0].gone) {
			t.Errorf("want the oldest one closed for one more, got %d closed", evicted)
		}
	})
}

// TestPlacesChangeHandsEvenly has clients connect at once while all places are taken. They get places one after the other,
// in the order in which they came, from when the oldest connection is not new any more.
func TestPlacesChangeHandsEvenly(t *testing.T) {
	t.Parallel()
	const many = crowdsPlaces / 2
	for name, test := range map[string]struct {
		waiting int
		last    time.Duration // after the first one
	}{
		"few":  {4, 3 * 2 * newcomersTime / crowdsPlaces},
		"many": {many, (many-fewHeld)*newcomersTime/crowdsPlaces + (fewHeld-1)*2*newcomersTime/crowdsPlaces},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				all, open, _ := newCrowd(t, 0)
				defer closeAll(all)
				time.Sleep(newcomersTime - 2*crowdsPlaces*time.Millisecond) // not much is left
				var waiting []<-chan error
				for range test.waiting {
					waiting = append(waiting, reads(all.admit(from{address: crowdsSource})))
				}
				if err := <-waiting[0]; err != nil {
					t.Fatal(err)
				}
				if age := time.Since(open[0].accepted); age != newcomersTime {
					t.Errorf("want the first place after %v of the oldest connection, got it after %v", newcomersTime, age)
				}
				first := time.Now()
				for i, one := range waiting[1:] {
					for _, later := range waiting[i+2:] {
						if len(later) > 0 {
							t.Fatalf("want number %d before those that came later", i+1)
						}
					}
					if err := <-one; err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(first); took != test.last {
					t.Errorf("want the last place after %v, got it after %v", test.last, took)
				}
				if got := all.evicted.Load(); int(got) != test.waiting {
					t.Errorf("want one closed for each, got %d", got)
				}
			})
		})
	}
}

// TestNewcomersDoNotOvertake has a client connect while one waits for a place that could be given away by now.
func TestNewcomersDoNotOvertake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, _, _ := newCrowd(t, 0)
		defer closeAll(all)
		first := all.admit(from{address: crowdsSource})
		time.Sleep(newcomersTime)
		second := reads(all.admit(from{address: crowdsSource}))
		time.Sleep(2 * heldPause)
		synctest.Wait()
		if len(second) != 0 {
			t.Error("want the second one to wait for the first")
		}
		if err := errors.Join(<-reads(first), <-second); err != nil {
			t.Error(err)
		}
	})
}

// TestWaitingForAPlaceEnds has a client wait for a place, and then something else comes.
func TestWaitingForAPlaceEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		then    func(c *clientConn, turnsDone func())
		want    error
		after   time.Duration
		evicted int64
	}{
		"when the others had time for the rest of their handshakes, one makes room": {
			then: func(_ *clientConn, done func()) {
				time.Sleep(2 * newcomersTime)
				done()
			}, after: 3 * newcomersTime, evicted: 1,
		},
		"when it is closed":               {then: func(c *clientConn, _ func()) { _ = c.Close() }, want: net.ErrClosed},
		"when a handshake's time is over": {want: os.ErrDeadlineExceeded, after: readHeaderTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				all, _, done := newCrowd(t, crowdsPlaces)
				defer closeAll(all)
				began := time.Now()
				one := all.admit(from{address: crowdsSource})
				result := reads(one)
				if test.then != nil {
					test.then(one, done)
				}
				if err := <-result; !errors.Is(err, test.want) {
					t.Errorf("want %v, got %v", test.want, err)
				}
				if took := time.Since(began); took != test.after {
					t.Errorf("want it after %v, got %v", test.after, took)
				}
				if got := all.evicted.Load(); got != test.evicted {
					t.Errorf("want %d closed for it, got %d", test.evicted, got)
				}
				_ = one.Close()
				if got := all.held.Len(); got != 0 {
					t.Errorf("want none left that waits, got %d", got)
				}
			})
		})
	}
}

// TestFewWaitForAPlace has more clients connect than may wait for a place.
func TestFewWaitForAPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, _, _ := newCrowd(t, crowdsPlaces)
		defer closeAll(all)
		for range maxHeld {
			if all.admit(from{address: crowdsSource}) == nil {
				t.Fatalf("want %d to wait", maxHeld)
			}
		}
		if all.admit(from{address: crowdsSource}) != nil {
			t.Error("want one more turned away")
		}
		if all.admit(from{address: "192.0.2.2"}) == nil {
			t.Error("want a client from another address let in")
		}
	})
}

// incoming is a listener whose connections a test makes.
type incoming struct {
	conns chan net.Conn
	errs  chan error
}

func (i incoming) Accept() (net.Conn, error) {
	select {
	case conn := <-i.conns:
		return conn, nil
	case err := <-i.errs:
		return nil, err
	}
}

func (i incoming) Close() error { return nil }

func (i incoming) Addr() net.Addr { return &net.TCPAddr{} }

// TestListenersHandOutPlaces has clients connect at a listener while the first address has all places.
func TestListenersHandOutPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, open, _ := newCrowd(t, crowdsPlaces)
		defer closeAll(all)
		in := incoming{conns: make(chan net.Conn), errs: make(chan error)}
		listener := all.listen(in)
		accepted := make(chan string, 10)
		go func() {
			for {
				conn, err := listener.Accept()
				switch {
				case errors.Is(err, net.ErrClosed):
					close(accepted)
					return
				case err != nil:
					accepted <- err.Error()
				default:
					accepted <- conn.RemoteAddr().String()
				}
			}
		}()
		next := func() string {
			synctest.Wait()
			select {
			case one := <-accepted:
				return one
			default:
				return ""
			}
		}

		in.conns <- from{address: crowdsSource}
		in.conns <- from{address: crowdsSource}
		if got := next(); got != "" || all.held.Len() != 2 {
			t.Errorf("want both to wait, got %q", got)
		}
		in.conns <- from{address: "192.0.2.2"}
		if got := next(); got != "192.0.2.2:1" {
			t.Errorf("want one from another address at once, got %q", got)
		}
		if got := all.evicted.Load(); got != 1 {
			t.Errorf("want one connection closed for it, and none for those who wait, got %d", got)
		}
		in.errs <- errors.New("too many open files")
		if got := next(); got != "too many open files" {
			t.Errorf("want the listener's error, got %q", got)
		}
		_ = open[1].Close()
		if got := next(); got != crowdsSource+":1" || all.held.Len() != 1 {
			t.Errorf("want one of those who wait when there is a place, got %q", got)
		}
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		if got := next(); got != "" || all.held.Len() != 0 {
			t.Errorf("want none to wait at a listener that is closed, got %q and %d", got, all.held.Len())
		}
		in.errs <- net.ErrClosed // as a listener does
	})
}
