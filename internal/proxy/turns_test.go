package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/fairqueue"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// greetings are handshakes with a proxy that takes long for them, and what is counted of them.
type greetings struct {
	all    *clientConnections
	config *tls.Config
	turns  atomic.Int64  // that have begun
	inside atomic.Int64  // handshakes that are computed at the moment
	most   atomic.Int64  // at a time
	goOn   chan struct{} // closed when what is computed may go on
}

func newGreetings(t *testing.T, slots int) *greetings {
	t.Helper()
	pair, err := newCA(t, "serving CA").IssueServing(certs.SANs{DNSNames: []string{"proxy"}}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	certificate := keyPair(t, pair)
	g := &greetings{all: newClientConnections(budget.New(budget.Defaults(), nil), slots), goOn: make(chan struct{})}
	g.config = &tls.Config{MinVersion: tls.VersionTLS13}
	g.config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		g.turns.Add(1)
		n := g.inside.Add(1)
		defer g.inside.Add(-1)
		for most := g.most.Load(); n > most && !g.most.CompareAndSwap(most, n); {
			most = g.most.Load()
		}
		<-g.goOn
		return certificate, nil
	}
	return g
}

// connect has a client connect, and returns both sides. The proxy's side ends with the test.
func (g *greetings) connect(t *testing.T) (server *clientConn, client net.Conn) {
	t.Helper()
	ours, client := net.Pipe()
	return g.serve(t, ours, client), client
}

// serve has a client whose connection is ours and client connect.
func (g *greetings) serve(t *testing.T, ours, client net.Conn) *clientConn {
	t.Helper()
	server := g.all.admit(ours)
	config := g.config.Clone()
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) { return forHandshake(g.config, hello, noUser) }
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn := tls.Server(server, config)
		_, _ = io.Copy(io.Discard, conn)
		_ = server.Close()
	}()
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
		<-ended
	})
	return server
}

// shake is the client's handshake.
func shake(client net.Conn) error {
	config := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}
	return tls.Client(client, config).Handshake()
}

// sayHello sends a client hello and reads no answer.
func sayHello(client net.Conn) error {
	if err := shake(&helloOnly{Conn: client}); !errors.Is(err, errHelloOnly) {
		return err
	}
	return nil
}

var errHelloOnly = errors.New("the client reads nothing")

type helloOnly struct{ net.Conn }

func (helloOnly) Read([]byte) (int, error) { return 0, errHelloOnly }

// Close keeps the connection open, and says nothing of the error.
func (helloOnly) Close() error { return nil }

// TestHandshakesTakeTurns has many clients connect at once.
func TestHandshakesTakeTurns(t *testing.T) {
	t.Parallel()
	const slots, clients = 2, 7
	g := newGreetings(t, slots)
	results := make(chan error, clients)
	for range clients {
		_, client := g.connect(t)
		go func() { results <- shake(client) }()
	}
	eventually(t, func() bool { return g.inside.Load() == slots && g.all.turns.Waiting() == clients-slots })
	close(g.goOn)
	for range clients {
		if err := <-results; err != nil {
			t.Errorf("want the handshake complete, got %v", err)
		}
	}
	if got := g.most.Load(); got != slots {
		t.Errorf("want %d computed at a time, got %d", slots, got)
	}
	eventually(t, func() bool { return g.all.turns.Running() == 0 })
}

// TestAddressesTakeTurns has many handshakes of one address wait, and then one of another.
func TestAddressesTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := newClientConnections(budget.New(budget.Defaults(), nil), 1)
		begun := make(chan *clientConn, 6)
		var conns []*clientConn
		for _, address := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"} {
			c := all.admit(from{address: address})
			defer c.Close() //nolint:errcheck // it goes nowhere
			conns = append(conns, c)
			go func() {
				if c.beginTurn(t.Context()) == nil {
					begun <- c
				}
			}()
			synctest.Wait()
		}
		for i, want := range []int{0, 1, 4, 2, 3} {
			if len(begun) != 1 {
				t.Fatalf("want one turn at a time, got %d", len(begun))
			}
			c := <-begun
			if c != conns[want] {
				t.Errorf("want turn %d to be that of number %d", i, want)
			}
			if i%2 == 0 {
				_, _ = c.Read(make([]byte, 1))
			} else {
				_, _ = c.Write(nil)
			}
			synctest.Wait()
		}
		if got := all.turns.Running(); got != 0 {
			t.Errorf("want each turn ended by what follows, got %d", got)
		}
	})
}

// TestHalfOfTheProcessors looks at how many handshakes are computed at a time.
func TestHalfOfTheProcessors(t *testing.T) {
	t.Parallel()
	for processors, want := range map[int]int{1: 1, 2: 1, 7: 3, 8: 4} {
		p := startProxy(t, func(_ *proxy, o *Options) { o.Processors = processors })
		for range processors + 1 {
			defer p.open.turns.Join(fairqueue.Owner{Name: "192.0.2.1"}).Done()
		}
		if got := p.open.turns.Running(); got != want {
			t.Errorf("%d processors: want %d at a time, got %d", processors, want, got)
		}
	}
}

// TestNoClientHoldsATurn has clients that do not go on, one after the other. There is one turn at a time, and each of them
// gives it back.
func TestNoClientHoldsATurn(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(g *greetings, server *clientConn, client net.Conn) error{
		"it says nothing": func(*greetings, *clientConn, net.Conn) error { return nil },
		"it begins a hello": func(_ *greetings, _ *clientConn, client net.Conn) error {
			_, err := client.Write([]byte{22, 3, 1, 1, 0, 1})
			return err
		},
		"it reads no answer": func(g *greetings, _ *clientConn, client net.Conn) error {
			close(g.goOn)
			if err := sayHello(client); err != nil {
				return err
			}
			for g.turns.Load() == 0 {
				time.Sleep(time.Millisecond)
			}
			return nil
		},
		"its connection is closed": func(g *greetings, server *clientConn, client net.Conn) error {
			if err := sayHello(client); err != nil {
				return err
			}
			for g.inside.Load() == 0 {
				time.Sleep(time.Millisecond)
			}
			server.abort()
			return nil
		},
		"its connection is closed while it waits": func(g *greetings, server *clientConn, client net.Conn) error {
			before := g.all.turns.Join(fairqueue.Owner{Name: server.address})
			if err := sayHello(client); err != nil {
				return err
			}
			for g.all.turns.Waiting() == 0 {
				time.Sleep(time.Millisecond)
			}
			server.abort()
			for g.all.turns.Waiting() > 0 {
				time.Sleep(time.Millisecond)
			}
			before.Done()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGreetings(t, 1)
			server, client := g.connect(t)
			if err := begin(g, server, client); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool { return g.all.turns.Running() == 0 && g.all.turns.Waiting() == 0 })
			if !isClosed(g.goOn) {
				close(g.goOn)
			}
			_, other := g.connect(t)
			if err := shake(other); err != nil {
				t.Errorf("want the next client served, got %v", err)
			}
		})
	}
}

// TestRetriedHandshakesTakeTurns has the proxy ask for another hello. The first turn ends with that, so the signature has
// one of its own.
func TestRetriedHandshakesTakeTurns(t *testing.T) {
	t.Parallel()
	g := newGreetings(t, 1)
	g.config.CurvePreferences = []tls.CurveID{tls.CurveP384}
	// Both sides write at the same moment, so somebody has to take it.
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // the test is over
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ours, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	g.serve(t, ours, client)
	result := make(chan error, 1)
	go func() { result <- shake(client) }()
	eventually(t, func() bool { return g.inside.Load() == 1 })
	if got := g.all.turns.Running(); got != 1 {
		t.Errorf("want a turn while the answer is computed, got %d", got)
	}
	close(g.goOn)
	if err := <-result; err != nil {
		t.Errorf("want the handshake complete, got %v", err)
	}
	eventually(t, func() bool { return g.all.turns.Running() == 0 })
}

// noUser knows no certificate.
func noUser([]*x509.Certificate) string { return "" }
