package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestResponsesStreamAtOnce(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"watch":     "/api/v1/pods?watch=1",
		"log":       "/api/v1/namespaces/d/pods/x/log?follow=true",
		"proxy":     "/api/v1/namespaces/d/services/x/proxy/events",
		"any other": "/apis/example.com/v1/things",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			events := make(chan string)
			p.api.serves(func(w http.ResponseWriter, _ *http.Request) {
				rc := http.NewResponseController(w)
				_ = rc.Flush()
				for event := range events {
					_, _ = io.WriteString(w, event+"\n")
					_ = rc.Flush()
				}
			})
			lines := bufio.NewReader(p.open(t.Context(), t, p.as(t, "jane"), path).Body) // before the first event
			for i := range 3 {
				want := fmt.Sprintf("event %d", i)
				events <- want
				if got, err := lines.ReadString('\n'); err != nil || got != want+"\n" {
					t.Fatalf("want %q at once, got %q, %v", want, got, err)
				}
			}
			close(events)
			if _, err := lines.ReadString('\n'); err != io.EOF {
				t.Errorf("want the end when the API server ends, got %v", err)
			}
		})
	}
}

func TestWatchEndsWhenTheClientLeaves(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	left := make(chan struct{})
	p.api.serves(func(w http.ResponseWriter, req *http.Request) {
		silent(w, req)
		close(left)
	})
	_ = p.open(t.Context(), t, p.as(t, "jane"), "/api/v1/pods?watch=1").Body.Close()
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Error("the API server still streams")
	}
}

// echoOr upgrades connections, and serves all other requests with serve.
func echoOr(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if protocol := req.Header.Get("Upgrade"); protocol != "" {
			echo(protocol)(w, req)
			return
		}
		serve(w, req)
	}
}

// silent begins a response and sends nothing more until the client leaves.
func silent(w http.ResponseWriter, req *http.Request) {
	_ = http.NewResponseController(w).Flush()
	<-req.Context().Done()
}

// echo switches protocols and sends back its input in upper case. When the client has finished, it says so and ends.
func echo(protocol string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, crlf.Replace(
			"HTTP/1.1 101 Switching Protocols\nConnection: Upgrade\nUpgrade: "+protocol+"\nX-Stream: yes\n\n"))
		for {
			line, err := buffered.ReadString('\n')
			if err != nil {
				_, _ = io.WriteString(conn, "that was all\n")
				return
			}
			_, _ = io.WriteString(conn, strings.ToUpper(line))
		}
	}
}

func TestUpgrades(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"SPDY/3.1", "websocket"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			p.api.serves(echo(protocol))
			conn := p.raw(t, p.jane(t), "POST /api/v1/namespaces/d/pods/x/exec?command=ls HTTP/1.1\nHost: proxy\n"+
				"Connection: upgrade, x\nX: gone\nUpgrade: "+protocol+"\nContent-Length: 0\n\n")
			reader := bufio.NewReader(conn)
			got := readResponse(t, reader)
			if got.Code != 101 || got.Header.Get("Upgrade") != protocol || got.Header.Get("X-Stream") != "yes" {
				t.Fatalf("want 101 to %s, got %d %v", protocol, got.Code, got.Header)
			}
			arrived := p.api.requests()[0]
			if arrived.Proto != "HTTP/1.1" || arrived.Header.Get("Upgrade") != protocol || arrived.Header.Get("X") != "" {
				t.Errorf("want an HTTP/1.1 upgrade at the API server, got %+v", arrived)
			}
			if arrived.Header.Get("Impersonate-User") != "jane" {
				t.Errorf("want jane, got %v", arrived.Header)
			}
			for _, word := range []string{"one", "two"} {
				_, _ = io.WriteString(conn, word+"\n")
				if got, err := reader.ReadString('\n'); err != nil || got != strings.ToUpper(word)+"\n" {
					t.Fatalf("want %q back, got %q, %v", word, got, err)
				}
			}
			must.Do(t, conn.CloseWrite())
			rest, err := io.ReadAll(reader)
			if err != nil || string(rest) != "that was all\n" {
				t.Errorf("want what comes after our half is closed, got %q, %v", rest, err)
			}
		})
	}
}

// switchToSPDY is the API server's side of a stream. Its first bytes arrive with the protocol switch.
func switchToSPDY(w http.ResponseWriter, words string) net.Conn {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = io.WriteString(conn, crlf.Replace(
		"HTTP/1.1 101 Switching Protocols\nConnection: Upgrade\nUpgrade: SPDY/3.1\n\n")+words)
	return conn
}

var execSPDY = upgradeTo("SPDY/3.1", "exec", "")

// TestUpgradedConnectionEndsWithTheAPIServer has a client that does not notice the end.
func TestUpgradedConnectionEndsWithTheAPIServer(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.serves(func(w http.ResponseWriter, _ *http.Request) {
		conn := switchToSPDY(w, "exit code 3\n")
		_ = conn.Close()
	})
	_, reader := p.switches(t, execSPDY)
	if rest, err := io.ReadAll(reader); err != nil || string(rest) != "exit code 3\n" {
		t.Errorf("want the last words and the end, got %q, %v", rest, err)
	}
	// The client stays connected and silent. The proxy closes the stream.
	p.waitServing(t, 0)
}

// TestLastWordsOfAnAPIServerThatResets has an API server reset a connection. The client's connection is closed cleanly.
func TestLastWordsOfAnAPIServerThatResets(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	heard := make(chan struct{})
	p.api.serves(func(w http.ResponseWriter, _ *http.Request) {
		conn := switchToSPDY(w, "exit code 3\n")
		<-heard
		tcp := conn.(*tls.Conn).NetConn().(*net.TCPConn)
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
	})
	conn, reader := p.switches(t, execSPDY)
	if words, err := reader.ReadString('\n'); err != nil || words != "exit code 3\n" {
		t.Fatalf("want the last words, got %q, %v", words, err)
	}
	close(heard)
	if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
		t.Errorf("want the end, got %q, %v", rest, err)
	}
	// Closing the connection at once would cause a reset, which makes some systems drop unread data.
	ended := time.Now()
	must.Get(io.WriteString(conn, "the rest of the input\n"))(t)
	if n, err := conn.NetConn().Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("want the connection closed in good order, got %d bytes, %v", n, err)
	}
	if stayed := time.Since(ended); stayed < 2500*time.Millisecond {
		t.Errorf("want the connection left to the client for a while, it was closed after %s", stayed)
	}
	p.waitServing(t, 0)
}

// deafConn is a connection to an API server that stops reading when deaf is closed.
type deafConn struct {
	net.Conn
	deaf    chan struct{}
	refused chan struct{} // receives a value for each failed write
}

func (c *deafConn) Write(p []byte) (int, error) {
	select {
	case <-c.deaf:
		c.refused <- struct{}{}
		return 0, syscall.EPIPE
	default:
		return c.Conn.Write(p)
	}
}

// TestLastWordsOfAnAPIServerThatTakesNothingMore has an API server end a stream while the client still sends. Its last
// message is an exit code, which arrives after a write of the proxy failed.
func TestLastWordsOfAnAPIServerThatTakesNothingMore(t *testing.T) {
	t.Parallel()
	deaf, refused := make(chan struct{}), make(chan struct{}, 100)
	p := newProxy(t)
	p.start(t, func(_ *proxy, o *Options) {
		o.Upstream.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return &deafConn{Conn: conn, deaf: deaf, refused: refused}, err
		}
	})
	p.api.serves(func(w http.ResponseWriter, _ *http.Request) {
		conn := switchToSPDY(w, "")
		defer func() { _ = conn.Close() }()
		<-refused
		_, _ = io.WriteString(conn, "exit code 3\n")
	})
	conn, reader := p.switches(t, execSPDY)
	close(deaf)
	for range 3 { // the first failed write, and further ones
		must.Get(io.WriteString(conn, "the rest of the input\n"))(t)
	}
	if rest, err := io.ReadAll(reader); err != nil || string(rest) != "exit code 3\n" {
		t.Errorf("want the last words and the end, got %q, %v", rest, err)
	}
	// The client stays connected. The proxy closes the stream.
	p.waitServing(t, 0)
}

func TestResponsesToUpgradesOtherThan101(t *testing.T) {
	t.Parallel()
	raw := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			defer func() { _ = conn.Close() }()
			_, _ = io.WriteString(conn, crlf.Replace(text))
			_, _ = io.ReadAll(buffered) // until the proxy closes
		}
	}
	for _, test := range []struct {
		name  string
		serve http.HandlerFunc
		want  int
	}{
		{"passes a refusal and closes", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, 403},
		{"passes a redirect and does not follow", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://127.0.0.1:1/steal")
			w.WriteHeader(302)
		}, 302},
		{
			"refuses another protocol",
			raw("HTTP/1.1 101 Switching Protocols\nConnection: Upgrade\nUpgrade: websocket\n\n"), 500,
		},
		{"refuses no protocol", raw("HTTP/1.1 101 Switching Protocols\n\n"), 500},
		{
			"refuses 200 with a protocol",
			raw("HTTP/1.1 200 OK\nConnection: Upgrade\nUpgrade: SPDY/3.1\nContent-Length: 0\n\n"), 200,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			p.api.serves(test.serve)
			reader := bufio.NewReader(p.raw(t, p.jane(t), execSPDY+get("/api/v1/namespaces/smuggled/secrets")))
			if got := readResponse(t, reader); got.Code != test.want || got.Header.Get("Upgrade") != "" {
				t.Errorf("want %d, got %d %v", test.want, got.Code, got.Header)
			}
			if _, err := reader.ReadByte(); err == nil {
				t.Error("want the client's connection closed")
			}
			if n := len(p.api.requests()); n != 1 {
				t.Errorf("want nothing more sent on, got %d requests", n)
			}
		})
	}
}

// TestManySessions has one user hold a hundred sessions in pods and hundreds of watches at a time. All of them work,
// and another user is not affected.
func TestManySessions(t *testing.T) {
	t.Parallel()
	const sessions, watches = 100, 400
	p := startProxy(t)
	p.api.serves(echoOr(func(w http.ResponseWriter, req *http.Request) {
		if strings.Contains(req.RequestURI, "watch") {
			silent(w, req)
		}
	}))
	client := p.as(t, "jane")
	for range watches {
		if res := p.open(t.Context(), t, client, "/api/v1/pods?watch=1"); res.StatusCode != http.StatusOK {
			t.Fatalf("want a watch, got %v", res)
		}
	}
	open := map[net.Conn]*bufio.Reader{}
	for range sessions {
		conn, responses := p.switches(t, execWith("v5.channel.k8s.io"))
		open[conn] = responses
	}
	if got := p.drain.streams.Load(); got != sessions+watches {
		t.Errorf("want %d streams at a time, got %d", sessions+watches, got)
	}
	if got := p.waiting(flowcontrol.Forward); got != 0 {
		t.Errorf("want no stream to be queued, got %d", got)
	}
	p.get(t, p.as(t, "joe"), "/api/v1/nodes", nil).check(t, http.StatusOK, "want another user served meanwhile")
	for conn, responses := range open {
		said := make([]byte, 6)
		must.Get(io.WriteString(conn, "hello\n"))(t)
		if _, err := io.ReadFull(responses, said); err != nil || string(said) != "HELLO\n" {
			t.Fatalf("want every session to live, got %q, %v", said, err)
		}
	}
}

// TestNoStreamLeavesAnythingBehind opens and ends many streams in every way and counts goroutines.
func TestNoStreamLeavesAnythingBehind(t *testing.T) {
	p := startProxy(t)
	p.api.serves(echoOr(silent))
	client := p.as(t, "jane")
	one := func(i int) {
		if i%2 == 0 {
			_ = p.open(t.Context(), t, client, "/api/v1/pods?watch=1").Body.Close()
			return
		}
		conn, _ := p.switches(t, upgradeTo("websocket", "attach", ""))
		if i%4 == 1 { // abruptly
			_ = conn.NetConn().(*net.TCPConn).SetLinger(0)
			_ = conn.NetConn().Close()
			return
		}
		_ = conn.Close()
	}
	settled := func() int {
		for last, same := -1, 0; ; time.Sleep(20 * time.Millisecond) {
			if p.drain.serving.Load() == 0 && p.drain.streams.Load() == 0 {
				if now := runtime.NumGoroutine(); now == last {
					if same++; same > 10 {
						return now
					}
				} else {
					last, same = now, 0
				}
			}
		}
	}
	for i := range 8 {
		one(i)
	}
	before := settled()
	count := 2000
	if testing.Short() {
		count = 400
	}
	for i := range count {
		one(i)
	}
	var after int
	eventually(t, func() bool { after = settled(); return after <= before+10 })
	t.Logf("%d goroutines before, %d after %d streams", before, after, count)
}
