package proxy

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// crowded are connections that read headers without an end from clients without a user.
type crowded struct {
	*clientConnections
	b *budget.Budget
	// fit is how many long headers have room in the share.
	fit int
}

func newCrowded() *crowded {
	b := budget.New(budget.Defaults(), nil)
	share := b.Limits()[budget.Bytes][budget.Unauthenticated]
	return &crowded{newClientConnections(b, 1), b, int(share / (unusedStep * unusedHTTP2))}
}

// header reads as much of a header as it can get, up to size, and tells on the channel how that ended.
func (all *crowded) header(size int) (*clientConn, <-chan error) {
	c := all.admit(deadEnd{})
	c.certified.Store(true)
	return c, readHeader(c, size)
}

func readHeader(c *clientConn, size int) <-chan error {
	ended := make(chan error, 1)
	go func() {
		for read := 0; read < size; {
			n, err := c.Read(make([]byte, size-read))
			if err != nil {
				ended <- err
				return
			}
			read += n
		}
		ended <- nil
	}()
	return ended
}

// closeAll closes all connections, after which nothing must be left.
func (all *crowded) closeAll(t *testing.T) {
	t.Helper()
	all.mu.Lock()
	var open []*clientConn
	for c := range all.open {
		open = append(open, c)
	}
	all.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
	time.Sleep(2 * evictionPause)
	synctest.Wait()
	h := all.headers
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting.Load() != 0 || h.reserved.Load() != 0 || len(h.queues) != 0 || h.holders.Len() != 0 {
		t.Errorf("want nothing left, got %d waiting, %d bytes reserved, %d queues and %d holders",
			h.waiting.Load(), h.reserved.Load(), len(h.queues), h.holders.Len())
	}
	if got := all.b.Held(budget.Bytes); got != 0 {
		t.Errorf("want no bytes held, got %d", got)
	}
}

// took returns how long it takes until the header has been read.
func took(t *testing.T, ended <-chan error) time.Duration {
	t.Helper()
	began := time.Now()
	if err := <-ended; err != nil {
		t.Errorf("want the header read, got %v", err)
	}
	return time.Since(began)
}

// TestHeadersWaitForMemory has strangers begin more long headers than there is memory for. They are closed at a bounded
// rate, and the others are not read meanwhile. Newcomers and those that have waited for longest get theirs soon.
func TestHeadersWaitForMemory(t *testing.T) {
	t.Parallel()
	const many, size = 200, 10 << 10
	crowd := func(t *testing.T) (*crowded, []<-chan error) {
		t.Helper()
		all := newCrowded()
		var ended []<-chan error
		for range many {
			_, end := all.header(size)
			ended = append(ended, end)
			time.Sleep(time.Microsecond) // each is newer than the one before
			synctest.Wait()
		}
		if got := int(all.headers.waiting.Load()); got != many-all.fit {
			t.Errorf("want %d to wait, got %d", many-all.fit, got)
		}
		return all, ended
	}
	t.Run("at a bounded rate", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			all, _ := crowd(t)
			time.Sleep(headerPatience - evictionPause)
			if got := all.evicted.Load(); got != 0 {
				t.Errorf("want none closed that just began, got %d", got)
			}
			before := all.evicted.Load()
			time.Sleep(2 * time.Second)
			most := int64(2 * time.Second / evictionPause)
			if got := all.evicted.Load() - before; got > most || got < most/2 {
				t.Errorf("want up to %d closed in 2 s, and not much less, got %d", most, got)
			}
			share := all.b.Limits()[budget.Bytes][budget.Unauthenticated]
			if got := all.b.HeldUnauthenticated(budget.Bytes); got > share || got < share*3/4 {
				t.Errorf("want the share of %d bytes used, got %d", share, got)
			}
			all.closeAll(t)
		})
	})
	t.Run("not where no other waits", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			all := newCrowded()
			for range all.fit {
				all.header(size)
			}
			time.Sleep(headerPatience)
			_, end := all.header(size)
			if got := took(t, end); got != 0 || all.evicted.Load() != 1 {
				t.Errorf("want one closed at once for a newcomer, got %d closed after %v", all.evicted.Load(), got)
			}
			all.closeAll(t)
		})
	})
	t.Run("those that have had memory for longest go first", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			all := newCrowded()
			var open []*clientConn
			for range 2 * all.fit {
				c, _ := all.header(size)
				open = append(open, c)
				time.Sleep(time.Microsecond)
				synctest.Wait()
			}
			time.Sleep(headerPatience + 10*evictionPause)
			closed := int(all.evicted.Load())
			if closed == 0 || closed >= all.fit {
				t.Fatalf("want some of %d closed, got %d", all.fit, closed)
			}
			for i, c := range open {
				if got := isClosed(c.gone); got != (i < closed) {
					t.Errorf("want the first %d closed, got %t for number %d", closed, got, i)
				}
			}
			all.closeAll(t)
		})
	})
	t.Run("newcomers and the longest in turn", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			all, ended := crowd(t)
			time.Sleep(headerPatience)
			newcomer, end := all.header(size)
			if got := took(t, end); got > 3*evictionPause {
				t.Errorf("want a newcomer to wait no longer than %v, got %v", 3*evictionPause, got)
			}
			newcomer.unused.useAll() // an honest one's header is complete
			time.Sleep(4 * evictionPause)
			select {
			case err := <-ended[all.fit]:
				if err != nil {
					t.Errorf("want the header that waited for longest read, got %v", err)
				}
			default:
				t.Error("want the one that waited for longest to have had its turn")
			}
			all.closeAll(t)
		})
	})
	t.Run("addresses in turn", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			all, _ := crowd(t)
			time.Sleep(headerPatience)
			elsewhere := all.admit(deadEnd{})
			elsewhere.address = "192.0.2.99"
			elsewhere.certified.Store(true)
			end := readHeader(elsewhere, size)
			over := make(chan struct{})
			newer := make(chan struct{})
			go func() { // connections that are newer come faster than others are closed
				defer close(newer)
				for !isClosed(over) {
					time.Sleep(evictionPause / 4)
					all.header(size)
				}
			}()
			if got := took(t, end); got > 5*evictionPause {
				t.Errorf("want another address to wait no longer than %v, got %v", 5*evictionPause, got)
			}
			close(over)
			<-newer
			all.closeAll(t)
		})
	})
	t.Run("not short ones, and not users", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			all, _ := crowd(t)
			_, short := all.header(unusedTolerated)
			if got := took(t, short); got != 0 {
				t.Errorf("want a short header read at once, got %v", got)
			}
			c := all.admit(deadEnd{})
			c.certified.Store(true)
			if err := c.identify("jane"); err != nil {
				t.Fatal(err)
			}
			if got := took(t, readHeader(c, size)); got != 0 {
				t.Errorf("want a user's header read at once, got %v", got)
			}
			all.closeAll(t)
		})
	})
	t.Run("as long as they are there", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			all, _ := crowd(t)
			c, end := all.header(size)
			synctest.Wait()
			before := all.headers.waiting.Load()
			_ = c.Close()
			synctest.Wait()
			if err := <-end; !errors.Is(err, net.ErrClosed) || all.headers.waiting.Load() != before-1 {
				t.Errorf("want the waiting ended with the connection, got %v", err)
			}
			all.closeAll(t)
		})
	})
}

// TestHeadersWithoutMemory has the share be full of what is no header, so that none can be closed.
func TestHeadersWithoutMemory(t *testing.T) {
	t.Parallel()
	const size = 10 << 10
	full := func(t *testing.T) *crowded {
		t.Helper()
		all := newCrowded()
		share := all.b.Limits()[budget.Bytes][budget.Unauthenticated]
		held, err := all.b.Acquire(budget.Client{}, budget.Bytes, share)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(held.Release)
		return all
	}
	t.Run("reads them from the reserve", func(t *testing.T) {
		t.Parallel()
		all := full(t)
		c, end := all.header(size)
		if err := <-end; err != nil || all.headers.reserved.Load() == 0 {
			t.Errorf("want the header read, to be refused with an answer, got %v", err)
		}
		_ = c.Close()
		if got := all.headers.reserved.Load(); got != 0 {
			t.Errorf("want the reserve given back, got %d bytes taken", got)
		}
	})
	t.Run("closes them in the end", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			all := full(t)
			all.headers.reserved.Store(1 << 40)
			began := time.Now()
			_, end := all.header(size)
			if err := <-end; !errors.Is(err, net.ErrClosed) || time.Since(began) != maxHeaderWait {
				t.Errorf("want it closed after %v, got %v after %v", maxHeaderWait, err, time.Since(began))
			}
			time.Sleep(2 * evictionPause)
		})
	})
}

// TestTheReserveIsBounded begins short headers on many connections. Where the reserve ends, they count for the share.
func TestTheReserveIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := newCrowded()
		var ended []<-chan error
		for range all.b.Limits()[budget.Connections][budget.Unauthenticated] {
			_, end := all.header(unusedTolerated)
			ended = append(ended, end)
		}
		for _, end := range ended {
			if got := took(t, end); got != 0 {
				t.Errorf("want all short headers read at once, got %v", got)
			}
		}
		most := all.b.Limits()[budget.Bytes][budget.Total] / reservePart
		if got := all.headers.reserved.Load(); got > most || got < most*9/10 {
			t.Errorf("want the reserve of %d bytes used, got %d", most, got)
		}
		all.closeAll(t)
	})
}
