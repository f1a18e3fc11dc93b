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
			p.api.set(func() {
				p.api.serve = func(w http.ResponseWriter, _ *http.Request) {
					rc := http.NewResponseController(w)
					_ = rc.Flush()
					for event := range events {
						_, _ = io.WriteString(w, event+"\n")
						_ = rc.Flush()
					}
				}
			})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.address+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := p.as(t, "jane").Do(req) // returns before the first event
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			lines := bufio.NewReader(res.Body)
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
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, req *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
			close(left)
		}
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.address+"/api/v1/pods?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := p.as(t, "jane").Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Error("the API server still streams")
	}
}

// echo switches protocols and sends back its input in upper case. When the client has finished, it says so and ends.
func echo(protocol string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(
			conn,
			"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\nX-Stream: yes\r\n\r\n",
		)
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
			p.api.set(func() { p.api.serve = echo(protocol) })
			conn := p.raw(
				t,
				clientCertificate(t, p.signerCA, "jane"),
				"POST /api/v1/namespaces/d/pods/x/exec?command=ls HTTP/1.1\nHost: proxy\nConnection: upgrade, x\nX: "+
					"gone\nUpgrade: "+protocol+"\nContent-Length: 0\n\n",
			)
			reader := readerOf(conn)
			res, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			if res.StatusCode != 101 || res.Header.Get("Upgrade") != protocol || res.Header.Get("X-Stream") != "yes" {
				t.Fatalf("want 101 to %s, got %d %v", protocol, res.StatusCode, res.Header)
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
			if err := conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
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
	_, _ = io.WriteString(
		conn,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"+words,
	)
	return conn
}

// exec opens a stream as a client does, and reads the header of the response.
func (p *proxy) exec(t *testing.T) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	conn := p.raw(
		t,
		clientCertificate(t, p.signerCA, "jane"),
		"POST /api/v1/namespaces/d/pods/x/exec HTTP/1.1\nHost: proxy\nConnection: Upgrade\nUpgrade: "+
			"SPDY/3.1\nContent-Length: 0\n\n",
	)
	reader := readerOf(conn)
	res, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("want 101, got %s", res.Status)
	}
	return conn, reader
}

// TestUpgradedConnectionEndsWithTheAPIServer has a client that does not notice the end.
func TestUpgradedConnectionEndsWithTheAPIServer(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, _ *http.Request) {
			conn := switchToSPDY(w, "exit code 3\n")
			_ = conn.Close()
		}
	})
	_, reader := p.exec(t)
	if rest, err := io.ReadAll(reader); err != nil || string(rest) != "exit code 3\n" {
		t.Errorf("want the last words and the end, got %q, %v", rest, err)
	}
	// The client stays connected and silent. The proxy closes the stream.
	eventually(t, func() bool { serving, streams := p.drain.counts(); return serving == 0 && streams == 0 })
}

// TestLastWordsOfAnAPIServerThatResets has an API server reset a connection. The client's connection is closed cleanly.
func TestLastWordsOfAnAPIServerThatResets(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	heard := make(chan struct{})
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, _ *http.Request) {
			conn := switchToSPDY(w, "exit code 3\n")
			<-heard
			tcp := conn.(*tls.Conn).NetConn().(*net.TCPConn)
			_ = tcp.SetLinger(0)
			_ = tcp.Close()
		}
	})
	conn, reader := p.exec(t)
	if words, err := reader.ReadString('\n'); err != nil || words != "exit code 3\n" {
		t.Fatalf("want the last words, got %q, %v", words, err)
	}
	close(heard)
	if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
		t.Errorf("want the end, got %q, %v", rest, err)
	}
	// Closing the connection at once would cause a reset, which makes some systems drop unread data.
	ended := time.Now()
	if _, err := io.WriteString(conn, "the rest of the input\n"); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.NetConn().Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("want the connection closed in good order, got %d bytes, %v", n, err)
	}
	if stayed := time.Since(ended); stayed < 2500*time.Millisecond {
		t.Errorf("want the connection left to the client for a while, it was closed after %s", stayed)
	}
	eventually(t, func() bool { serving, streams := p.drain.counts(); return serving == 0 && streams == 0 })
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
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, _ *http.Request) {
			conn := switchToSPDY(w, "")
			defer func() { _ = conn.Close() }()
			<-refused
			_, _ = io.WriteString(conn, "exit code 3\n")
		}
	})
	conn, reader := p.exec(t)
	close(deaf)
	for range 3 { // the first failed write, and further ones
		if _, err := io.WriteString(conn, "the rest of the input\n"); err != nil {
			t.Fatal(err)
		}
	}
	if rest, err := io.ReadAll(reader); err != nil || string(rest) != "exit code 3\n" {
		t.Errorf("want the last words and the end, got %q, %v", rest, err)
	}
	// The client stays connected. The proxy closes the stream.
	eventually(t, func() bool { serving, streams := p.drain.counts(); return serving == 0 && streams == 0 })
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
			_, _ = io.WriteString(conn, strings.ReplaceAll(text, "\n", "\r\n"))
			_, _ = io.ReadAll(buffered) // until the proxy closes
		}
	}
	const upgrade = "Connection: Upgrade\nUpgrade: SPDY/3.1\n"
	for _, test := range []struct {
		name, asked string
		serve       http.HandlerFunc
		want        int
	}{
		{"passes a refusal and closes", upgrade, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, 403},
		{"passes a redirect and does not follow", upgrade, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://127.0.0.1:1/steal")
			w.WriteHeader(302)
		}, 302},
		{"refuses another protocol", upgrade, raw("HTTP/1.1 101 Switching Protocols\nConnection: Upgrade\nUpgrade: " +
			"websocket\n\n"), 500},
		{"refuses no protocol", upgrade, raw("HTTP/1.1 101 Switching Protocols\n\n"), 500},
		{"refuses 200 with a protocol", upgrade, raw("HTTP/1.1 200 OK\nConnection: Upgrade\nUpgrade: " +
			"SPDY/3.1\nContent-Length: 0\n\n"), 200},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			p.api.set(func() { p.api.serve = test.serve })
			conn := p.raw(t, clientCertificate(t, p.signerCA, "jane"),
				"POST /api/v1/namespaces/d/pods/x/exec HTTP/1.1\nHost: proxy\n"+test.asked+"Content-Length: 0\n\n"+
					"GET /api/v1/namespaces/smuggled/secrets HTTP/1.1\nHost: proxy\n\n")
			reader := readerOf(conn)
			res, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			if res.StatusCode != test.want || res.Header.Get("Upgrade") != "" {
				t.Errorf("want %d, got %d %v", test.want, res.StatusCode, res.Header)
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
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, req *http.Request) {
			switch {
			case req.Header.Get("Upgrade") != "":
				echo(req.Header.Get("Upgrade"))(w, req)
			case strings.Contains(req.RequestURI, "watch"):
				_ = http.NewResponseController(w).Flush()
				<-req.Context().Done()
			}
		}
	})
	certificate := clientCertificate(t, p.signerCA, "jane")
	client := p.client(t, certificate)
	for range watches {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.address+"/api/v1/pods?watch=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("want a watch, got %v, %v", res, err)
		}
		defer func() { _ = res.Body.Close() }()
	}
	open := map[net.Conn]*bufio.Reader{}
	for range sessions {
		conn := p.raw(t, certificate, execWith("v5.channel.k8s.io"))
		responses := readerOf(conn)
		res, err := http.ReadResponse(responses, nil)
		if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("want a session, got %v, %v", res, err)
		}
		_ = res.Body.Close()
		open[conn] = responses
	}
	if _, got := p.drain.counts(); got != sessions+watches {
		t.Errorf("want %d streams at a time, got %d", sessions+watches, got)
	}
	if got := p.waiting(flowcontrol.Forward); got != 0 {
		t.Errorf("want no stream to be queued, got %d", got)
	}
	if got := p.get(t, p.as(t, "joe"), "/api/v1/nodes", nil); got.Code != http.StatusOK {
		t.Errorf("want another user served meanwhile, got %d", got.Code)
	}
	for conn, responses := range open {
		said := make([]byte, 6)
		if _, err := io.WriteString(conn, "hello\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(responses, said); err != nil || string(said) != "HELLO\n" {
			t.Fatalf("want every session to live, got %q, %v", said, err)
		}
	}
}

// TestNoStreamLeavesAnythingBehind opens and ends many streams in every way and counts goroutines.
func TestNoStreamLeavesAnythingBehind(t *testing.T) {
	p := startProxy(t)
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, req *http.Request) {
			if req.Header.Get("Upgrade") != "" {
				echo(req.Header.Get("Upgrade"))(w, req)
				return
			}
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
		}
	})
	jane := clientCertificate(t, p.signerCA, "jane")
	client := p.client(t, jane)
	one := func(i int) {
		if i%2 == 0 {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.address+"/api/v1/pods?watch=1", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			return
		}
		conn := p.raw(
			t,
			jane,
			"GET /api/v1/namespaces/d/pods/x/attach HTTP/1.1\nHost: proxy\nConnection: Upgrade\nUpgrade: websocket\n\n",
		)
		res, err := http.ReadResponse(readerOf(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if i%4 == 1 { // abruptly
			_ = conn.NetConn().(*net.TCPConn).SetLinger(0)
			_ = conn.NetConn().Close()
			return
		}
		_ = conn.Close()
	}
	settled := func() int {
		for last, same := -1, 0; ; time.Sleep(20 * time.Millisecond) {
			if serving, streams := p.drain.counts(); serving == 0 && streams == 0 {
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
