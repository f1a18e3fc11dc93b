package listener_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// memory is small: unauthenticated clients have memory for about 25 handshakes.
const memory = 16 << 20

// port is a server with a listener. A request with a "user" header is authenticated as that user.
type port struct {
	*httptest.Server
	port      *listener.Port
	flow      *flowcontrol.Controller
	addresses chan string // of the next connections, instead of their own
}

func serve(t *testing.T, handler http.HandlerFunc) *port {
	t.Helper()
	return serveWith(t, memory, handler)
}

func serveWith(t *testing.T, bytes int64, handler http.HandlerFunc) *port {
	t.Helper()
	a := flowcontrol.New(flowcontrol.LimitsFor(bytes, 2))
	p := &port{port: listener.New(a), flow: a, addresses: make(chan string, 1000)}
	p.Server = httptest.NewUnstartedServer(p.port.Handler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if user := req.Header.Get("user"); user != "" {
			if err := listener.From(req.Context()).Identified(user, false); err != nil {
				http.Error(w, err.Error(), http.StatusTooManyRequests)
				return
			}
		}
		handler(w, req)
	}), func(w http.ResponseWriter, _ *http.Request, err error) {
		http.Error(w, err.Error(), http.StatusTooManyRequests)
	}))
	p.Listener = p.port.Listen(addressed{p.Listener, p.addresses})
	p.EnableHTTP2 = true
	p.Config.ErrorLog = nil
	p.StartTLS()
	t.Cleanup(p.CloseClientConnections)
	t.Cleanup(p.Close)
	return p
}

// addressed gives connections other addresses.
type addressed struct {
	net.Listener
	addresses chan string
}

type elsewhere struct {
	net.Conn
	address net.Addr
}

func (c elsewhere) RemoteAddr() net.Addr { return c.address }

func (l addressed) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	select {
	case ip := <-l.addresses:
		port := conn.RemoteAddr().(*net.TCPAddr).Port //nolint:forcetypeassert // it listens on TCP
		return elsewhere{conn, &net.TCPAddr{IP: net.ParseIP(ip), Port: port}}, nil
	default:
		return conn, nil
	}
}

func (p *port) dial(t *testing.T) net.Conn {
	t.Helper()
	conn := must.Get(net.Dial("tcp", p.Server.Listener.Addr().String()))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// secure returns a new TLS connection, on which a client writes what it likes.
func (p *port) secure(t *testing.T, protocols ...string) *tls.Conn {
	t.Helper()
	return tls.Client(p.dial(t), &tls.Config{InsecureSkipVerify: true, NextProtos: protocols})
}

// checkServed expects that a user who has no connection yet is served.
func (p *port) checkServed(t *testing.T) {
	t.Helper()
	if got := p.get("jane"); got != "200 ok" {
		t.Errorf("want a newcomer served, got %q", got)
	}
}

// get sends a request over a new connection, and returns the status or the error.
func (p *port) get(user string, header ...string) string {
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
	defer client.CloseIdleConnections()
	req, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, p.URL, http.NoBody)
	if user != "" {
		req.Header.Set("user", user)
	}
	for _, value := range header {
		req.Header.Add("more", value)
	}
	res, err := client.Do(req)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	body, _ := io.ReadAll(res.Body)
	return fmt.Sprint(res.StatusCode, " ", string(body))
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if !done() {
			return errors.New("waited in vain for: " + what)
		}
		return nil
	})
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

// TestHalfOpenConnections has attackers open connections, from one or many addresses, and send nothing. New clients and
// users are served, and in the end no memory is held.
func TestHalfOpenConnections(t *testing.T) {
	t.Parallel()
	for name, addresses := range map[string]int{"one address": 1, "many addresses": 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serveWith(t, 4*memory, ok)
			var over atomic.Bool
			var attack sync.WaitGroup
			attack.Go(func() {
				var open []net.Conn
				for i := 0; !over.Load(); i++ {
					p.addresses <- fmt.Sprint("10.0.0.", i%addresses)
					conn, err := net.Dial("tcp", p.Server.Listener.Addr().String())
					if err != nil {
						continue
					}
					if open = append(open, conn); len(open) > 1500 {
						_ = open[0].Close()
						open = open[1:]
					}
					time.Sleep(5 * time.Millisecond)
				}
				for _, conn := range open {
					_ = conn.Close()
				}
			})
			eventually(t, "room is made", func() bool { return p.port.Evicted() > 0 })
			for range 10 {
				p.checkServed(t)
			}
			over.Store(true)
			attack.Wait()
			eventually(t, "everything is given back", func() bool {
				held := p.flow.Memory()
				return held.Users == 0 && held.Unauthenticated == 0
			})
		})
	}
}

// TestACrowdOfUsers has many users connect at once. No connection is evicted.
func TestACrowdOfUsers(t *testing.T) {
	t.Parallel()
	const users = 400 // with 24 KiB each, more than the limit of all unauthenticated clients
	p := serveWith(t, 64<<20, ok)
	var flowQueue sync.WaitGroup
	for i := range users {
		flowQueue.Go(func() {
			if got := p.get(fmt.Sprint("user-", i)); got != "200 ok" {
				t.Errorf("want user %d served, got %q", i, got)
			}
		})
	}
	flowQueue.Wait()
	if n := p.port.Evicted(); n != 0 {
		t.Errorf("want no connection closed, got %d", n)
	}
}

// pipes is a listener in memory, as synctest requires.
type pipes struct{ conns chan net.Conn }

func (l pipes) Accept() (net.Conn, error) {
	conn, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (pipes) Close() error   { return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestLateHellos has a machine open so many connections that it needs seconds to send each ClientHello. None is evicted
// for another; those that never send one are.
func TestLateHellos(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		after  time.Duration
		closed bool
	}{{"late", 2 * time.Second, false}, {"never", 5 * time.Second, true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const many = 230 // with 6 KiB each, more than fit before their ClientHello
				l := pipes{make(chan net.Conn, many)}
				e := listener.New(flowcontrol.New(flowcontrol.LimitsFor(memory, 2)))
				edged := e.Listen(l)
				go func() {
					for err := error(nil); err == nil; {
						_, err = edged.Accept()
					}
				}()
				var clients []net.Conn
				for i := range many {
					ours, theirs := net.Pipe()
					clients = append(clients, ours)
					l.conns <- elsewhere{theirs, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: i + 1}}
				}
				close(l.conns)
				time.Sleep(test.after) // of synctest's fake clock
				if got := e.Evicted() > 0; got != test.closed {
					t.Errorf("want connections closed: %v, got %d", test.closed, e.Evicted())
				}
				time.Sleep(time.Minute) // of the fake clock, until all have arrived
				for _, conn := range clients {
					_ = conn.Close()
				}
			})
		})
	}
}

// TestHalfHeads has attackers send large headers without an end. They evict each other, and a new client is served.
func TestHalfHeads(t *testing.T) {
	t.Parallel()
	p := serve(t, ok)
	for range 60 {
		_, _ = io.WriteString(p.secure(t), "GET / HTTP/1.1\r\nA: "+strings.Repeat("a", 6<<10))
	}
	eventually(t, "one goes for the other", func() bool { return p.port.Evicted() > 0 })
	p.checkServed(t)
	if got := p.flow.Memory(); got.Unauthenticated > got.MostUnauthenticated {
		t.Errorf("want no more held than there is, got %+v", got)
	}
}

// blockWith returns the header of an HTTP/2 request with this number of small fields.
func blockWith(fields int) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	all := []hpack.HeaderField{
		{Name: ":method", Value: "GET"},
		{Name: ":scheme", Value: "https"},
		{Name: ":path", Value: "/"},
		{Name: ":authority", Value: "proxy"},
	}
	for _, field := range append(all, slices.Repeat([]hpack.HeaderField{{Name: "a", Value: "b"}}, fields)...) {
		_ = encoder.WriteField(field)
	}
	return block.Bytes()
}

// TestSlowClientsWithLargeHeaders has unauthenticated clients send large headers and read no response, until
// unauthenticated clients have no memory left. Their connections are evicted as soon as a new client needs memory.
func TestSlowClientsWithLargeHeaders(t *testing.T) {
	t.Parallel()
	p := serve(t, ok)
	block := blockWith(2000)
	flood := func() {
		conn, err := net.Dial("tcp", p.Server.Listener.Addr().String())
		if err != nil {
			return
		}
		defer conn.Close() //nolint:errcheck // it is given up
		secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		_, _ = io.WriteString(secure, http2.ClientPreface)
		framer := http2.NewFramer(secure, nil)
		_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for stream := uint32(1); err == nil; stream += 2 { // until the connection ends
			err = framer.WriteHeaders(http2.HeadersFrameParam{
				StreamID: stream, BlockFragment: block, EndStream: true, EndHeaders: true,
			})
		}
	}
	for range 3 {
		go func() {
			for t.Context().Err() == nil {
				flood()
			}
		}()
	}
	eventually(t, "their heads take the memory", func() bool {
		now := p.flow.Memory()
		return now.Unauthenticated > now.MostUnauthenticated/4*3
	})
	p.checkServed(t)
	if p.port.Evicted() == 0 {
		t.Error("want room made by the end of an attacker's connection")
	}
}

// TestEndlessInput sends a header without an end. The connection is closed.
func TestEndlessInput(t *testing.T) {
	t.Parallel()
	p := serve(t, ok)
	secure := p.secure(t, "h2")
	must.Do(t, secure.Handshake())
	_, _ = io.WriteString(secure, http2.ClientPreface)
	settings := "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	for sent := 0; ; sent += 1000 * len(settings) {
		_ = secure.SetWriteDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(secure, strings.Repeat(settings, 1000)); err != nil {
			break
		}
		if sent > 32<<20 {
			t.Fatal("want an end")
		}
	}
}

// TestUsersAreNotUnauthenticated fills the memory of unauthenticated clients after a user has connected. The user's
// connection stays.
func TestUsersAreNotUnauthenticated(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	p := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		<-release
		_, _ = io.WriteString(w, "ok")
	})
	responses := make(chan string, 1)
	go func() { responses <- p.get("jane") }()
	eventually(t, "the user is known", func() bool { return p.flow.Memory().Users > 0 })
	for range 500 {
		p.dial(t)
	}
	eventually(t, "unauthenticated replace each other", func() bool { return p.port.Evicted() >= 50 })
	close(release)
	if got := <-responses; got != "200 ok" {
		t.Errorf("want the user served, got %q", got)
	}
}

// TestPenaltiesSlowDown penalizes one user heavily. The user's reads wait; those of other users do not.
func TestPenaltiesSlowDown(t *testing.T) {
	t.Parallel()
	p := serve(t, func(w http.ResponseWriter, req *http.Request) {
		listener.From(req.Context()).Conn.Penalize(time.Hour)
		_, _ = io.WriteString(w, "ok")
	})
	conn := p.secure(t)
	responses := bufio.NewReader(conn)
	ask := func() time.Duration {
		began := time.Now()
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nUser: mallory\r\n\r\n")
		res, err := http.ReadResponse(responses, nil)
		must.Do(t, err)
		_, _ = io.ReadAll(res.Body)
		_ = res.Body.Close()
		return time.Since(began)
	}
	ask()
	if took := ask(); took < time.Second {
		t.Errorf("want the next request to wait, got %v", took)
	}
	if p.flow.Delay("joe") > 0 {
		t.Error("want other users not to wait")
	}
}

// TestLargeHeadsCount has users send headers of many fields, and compares the memory that counts with the memory used.
func TestLargeHeadsCount(t *testing.T) {
	t.Parallel()
	held := make(chan int64, 1)
	var p *port
	p = serve(t, func(w http.ResponseWriter, req *http.Request) {
		held <- p.flow.HeldBy(flowcontrol.Flow{User: "jane"}, flowcontrol.Request)
		_, _ = io.WriteString(w, "ok")
	})
	many := make([]string, 1000)
	if got := p.get("jane", many...); got != "200 ok" {
		t.Fatal(got)
	}
	if got := <-held; got < 100_000 {
		t.Errorf("want a thousand fields to count, got %d bytes", got)
	}
}
