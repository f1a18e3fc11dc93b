package impersonator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/impersonator/budget"
)

// sink is a connection that takes everything, and on which nothing comes.
type sink struct{ from }

func (sink) Write(p []byte) (int, error) { return len(p), nil }

// handshakesOf has connections begin their handshakes, one after the other, while the only turn is taken by another one.
// It returns that one, and the channel on which each that gets its turn is named, like its address with a number.
func handshakesOf(all *clientConnections, addresses ...string) (*clientConn, []*clientConn, <-chan string) {
	held := all.admit(sink{from{address: "192.0.2.250"}})
	_ = all.handshakes.begin(context.Background(), held)
	began := make(chan string, len(addresses))
	var waiting []*clientConn
	for i, address := range addresses {
		c := all.admit(sink{from{address: "192.0.2." + address}})
		waiting = append(waiting, c)
		go func() {
			if all.handshakes.begin(context.Background(), c) == nil {
				began <- fmt.Sprintf("%s/%d", address, i)
			}
		}()
		synctest.Wait()
	}
	return held, waiting, began
}

// TestHandshakesTakeTurns has handshakes wait, and gives one turn after the other.
func TestHandshakesTakeTurns(t *testing.T) {
	t.Parallel()
	many := strings.Split(strings.Repeat("1 ", fewHandshakes+4)+"2", " ")
	for _, test := range []struct {
		name string
		from []string
		want []string
	}{
		{
			"lets the newest go first, and each fourth time the one that has waited for longest",
			[]string{"1", "2", "3", "4", "5", "6", "7", "8"},
			[]string{"8/7", "7/6", "6/5", "1/0", "5/4", "4/3", "3/2", "2/1"},
		},
		{
			"lets an address with few handshakes go before one with many",
			append(many, "1", "1"),
			[]string{"2/8", "1/10", "1/9", "1/0", "1/7"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				all := newClientConnections(budget.New(budget.Defaults(), nil), 1)
				next, waiting, turns := handshakesOf(all, test.from...)
				var got []string
				for range test.want {
					_, _ = next.Write(nil)
					synctest.Wait()
					if len(turns) != 1 {
						t.Fatalf("want one at a time, got %d after %q", len(turns), got)
					}
					got = append(got, <-turns)
					for _, c := range waiting {
						if c.computing.Load() {
							next = c
						}
					}
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				for _, c := range waiting {
					_ = c.Close()
				}
				synctest.Wait()
				if all.handshakes.waits() != 0 || all.handshakes.computing != 0 || len(all.handshakes.addresses) != 0 {
					t.Errorf("want nothing left, got %d waiting, %d computing, %d addresses",
						all.handshakes.waits(), all.handshakes.computing, len(all.handshakes.addresses))
				}
			})
		})
	}
}

// TestTurnsOfHandshakesEnd ends the connection that has the only turn, or has it do what comes after our part.
func TestTurnsOfHandshakesEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*clientConn){
		"with the first write":              func(c *clientConn) { _, _ = c.Write(nil) },
		"when the client is to be read":     func(c *clientConn) { _, _ = c.Read(make([]byte, 1)) },
		"with the connection":               func(c *clientConn) { _ = c.Close() },
		"when it is closed to make room":    func(c *clientConn) { c.abort() },
		"once, however often it is written": func(c *clientConn) { _, _ = c.Write(nil); _, _ = c.Write(nil); _ = c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				all := newClientConnections(budget.New(budget.Defaults(), nil), 1)
				held, waiting, turns := handshakesOf(all, "1", "2")
				end(held)
				synctest.Wait()
				if len(turns) != 1 || all.handshakes.computing != 1 {
					t.Errorf("want the next one to have its turn, got %d, and %d computing", len(turns), all.handshakes.computing)
				}
				_ = waiting[0].Close() // it still waits
				_ = waiting[1].Close()
				synctest.Wait()
				if len(turns) != 1 || all.handshakes.computing != 0 || all.handshakes.waits() != 0 {
					t.Errorf("want nothing left, got %d turns, %d computing, %d waiting",
						len(turns), all.handshakes.computing, all.handshakes.waits())
				}
			})
		})
	}
}

// TestHandshakesDoNotWaitForEver has a handshake wait for as long as a client has for it in any case.
func TestHandshakesDoNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := newClientConnections(budget.New(budget.Defaults(), nil), 1)
		held, _, _ := handshakesOf(all)
		defer held.Close() //nolint:errcheck // the test is over
		c := all.admit(sink{from{address: "192.0.2.1"}})
		began := time.Now()
		if err := all.handshakes.begin(
			t.Context(),
			c,
		); !errors.Is(err, errNoTurn) ||
			handshakeCause(err.Error()) != "no_turn" {
			t.Errorf("want no turn, got %v", err)
		}
		if got := time.Since(began); got != readHeaderTimeout {
			t.Errorf("want it to wait for %s, got %s", readHeaderTimeout, got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := all.handshakes.begin(ctx, all.admit(sink{from{address: "192.0.2.1"}})); !errors.Is(err, errNoTurn) {
			t.Errorf("want an end with the server, got %v", err)
		}
		if got := all.handshakes.waits(); got != 0 {
			t.Errorf("want none left, got %d", got)
		}
	})
}

// TestUnansweredHandshakesHoldNoTurn has many clients say hello and never answer. Others come in.
func TestUnansweredHandshakesHoldNoTurn(t *testing.T) {
	t.Parallel()
	const silent = 20
	p := startProxy(t)
	turns := p.open.handshakes
	before := turns.begun.Load()
	for range silent {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // the test is over
		_ = tls.Client(neverRead{conn}, named(p.clientTLS(nil))).HandshakeContext(t.Context())
	}
	if got := p.get(t, p.as(t, "jane"), "/api/v1/nodes", nil); got.Code != http.StatusOK {
		t.Errorf("want a user to come in, got %d", got.Code)
	}
	eventually(t, func() bool {
		turns.mu.Lock()
		defer turns.mu.Unlock()
		return turns.begun.Load()-before == silent+1 && turns.waiting.Len() == 0 && turns.computing == 0
	})
}

// named is for a connection that no dialer made.
func named(config *tls.Config) *tls.Config {
	config.ServerName = "127.0.0.1"
	return config
}

// neverRead is a connection whose client does not read.
type neverRead struct{ net.Conn }

var errNeverRead = errors.New("not read")

func (neverRead) Read([]byte) (int, error) { return 0, errNeverRead }

// Close does nothing: a client that is told that its handshake failed closes the connection.
func (neverRead) Close() error { return nil }

// Write drops what is not the hello: the alert about the handshake that failed.
func (n neverRead) Write(p []byte) (int, error) {
	if len(p) > 0 && p[0] != 22 {
		return len(p), nil
	}
	return n.Conn.Write(p)
}

// TestSecondHellosTakeAnotherTurn has the server ask for a second client hello. The first write ended the turn of the
// first one, and what costs comes after the second.
func TestSecondHellosTakeAnotherTurn(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	all := newClientConnections(budget.New(budget.Defaults(), nil), 1)
	plain, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close() //nolint:errcheck // the test is over
	listener := all.listen(plain)
	for name, test := range map[string]struct {
		curve tls.CurveID
		turns int64
	}{
		"one that is not needed": {tls.X25519, 1},
		"one that is":            {tls.CurveP384, 2},
	} {
		before := all.handshakes.begun.Load()
		theirs, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", plain.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		ours, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		config := &tls.Config{
			MinVersion: tls.VersionTLS13, CurvePreferences: []tls.CurveID{test.curve},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.serving.Load(), nil },
		}
		base := config.Clone()
		base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) { return forHandshake(config, hello) }
		server := tls.Server(ours, base)
		served := make(chan error, 1)
		go func() { served <- server.HandshakeContext(t.Context()) }()
		err = tls.Client(theirs, named(p.clientTLS(nil))).HandshakeContext(t.Context())
		if err != nil {
			_ = theirs.Close()
		}
		if err := errors.Join(err, <-served); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_ = theirs.Close()
		_ = server.Close()
		if got := all.handshakes.begun.Load() - before; got != test.turns || all.handshakes.computing != 0 {
			t.Errorf("%s: want %d turns and none held, got %d and %d", name, test.turns, got, all.handshakes.computing)
		}
	}
}
