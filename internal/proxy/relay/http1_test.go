package relay

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestResponses has the server respond in every way that HTTP/1.1 allows. It then sends a second request, which must get
// its own response, over a new connection unless the whole first response was read and nothing followed it.
func TestResponses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3*readSize+7)
	for _, test := range []struct {
		name, response string
		method         string // default GET
		code           int    // default 200
		body           string
		trailer        string // of X-End
		broken         bool   // reading ends with an error
		reused         bool
	}{
		{name: "a length", response: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", body: "hello", reused: true},
		{name: "a long one", response: "HTTP/1.1 200 OK\r\nContent-Length: 49159\r\n\r\n" + long, body: long, reused: true},
		{name: "no body", response: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", reused: true},
		{
			name: "chunks", response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
			body: "hello", reused: true,
		},
		{
			name:     "trailers",
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n5\r\nhello\r\n0\r\nX-End: well\r\n\r\n",
			body:     "hello", trailer: "well", reused: true,
		},
		{name: "HEAD", method: "HEAD", response: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", reused: true},
		{name: "HEAD of chunks", method: "HEAD", response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", reused: true},
		{name: "HEAD with a body", method: "HEAD", response: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"},
		{name: "204", code: 204, response: "HTTP/1.1 204 No Content\r\n\r\n", reused: true},
		{name: "304", code: 304, response: "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", reused: true},
		{name: "304 with a body", code: 304, response: "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello"},
		{
			name: "the server closes", body: "hello",
			response: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
		},
		{name: "HTTP/1.0", body: "hello", response: "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"},
		{name: "more than its length", body: "hello", response: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello" + ok},
		{
			name: "more than its chunks", body: "hello",
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nHTTP/1.1 500 No\r\n\r\n",
		},
		{name: "more than a long one", body: long, response: "HTTP/1.1 200 OK\r\nContent-Length: 49159\r\n\r\n" + long + ok},
		{name: "informational ones", response: "HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + ok, body: "ok", reused: true},
		{name: "another protocol", code: 101, response: "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"},
		{
			name: "no last chunk", body: "he", broken: true,
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\nzz\r\n",
		},
		{
			name: "both a length and chunks", body: "hello",
			response: "HTTP/1.1 200 OK\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", reused: true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, respondWith(test.response, ok))
			if test.method == "" {
				test.method = http.MethodGet
			}
			if test.code == 0 {
				test.code = http.StatusOK
			}
			got, err := s.ask(t, test.method, nil)
			if got.code != test.code || got.body != test.body || (err != nil) != test.broken {
				t.Fatalf("want %d and %d bytes, got %d bytes and %v", test.code, len(test.body), len(got.body), err)
			}
			if got := got.trailer.Get("X-End"); got != test.trailer {
				t.Errorf("want the trailer %q, got %q", test.trailer, got)
			}
			s.checkOK(t, http.MethodGet, nil)
			if reused := s.conns.Load() == 1; reused != test.reused {
				t.Errorf("want the connection reused: %t", test.reused)
			}
		})
	}
}

// TestResponsesThatEndWithTheConnection checks that the end of the connection ends a response without a length, and
// breaks any other response.
func TestResponsesThatEndWithTheConnection(t *testing.T) {
	t.Parallel()
	for response, good := range map[string]bool{
		"HTTP/1.1 200 OK\r\n\r\nhello":                                                true,
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello":                           false,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n":         false,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: ": false,
	} {
		s := serve(t, func(_ int64, conn net.Conn, read *bufio.Reader) {
			if _, err := http.ReadRequest(read); err == nil {
				_, _ = io.WriteString(conn, response)
			}
		})
		if got, err := s.ask(t, http.MethodGet, nil); got.body != "hello" || (err == nil) != good {
			t.Errorf("%q: want it good: %t, got %v and %v", response, good, got, err)
		}
	}
}

// TestHeadsWithoutAnEnd checks the limit of what a server may send before its response.
func TestHeadsWithoutAnEnd(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]string{"one field": "HTTP/1.1 200 OK\r\nX: ", "many responses": ""} {
		s := serve(t, func(_ int64, conn net.Conn, read *bufio.Reader) {
			_, _ = http.ReadRequest(read)
			piece := strings.Repeat("x", 1<<16)
			if start == "" {
				piece = strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 1000)
			}
			for _, err := io.WriteString(conn, start); err == nil; _, err = io.WriteString(conn, piece) {
				continue
			}
		})
		if _, err := s.ask(t, http.MethodGet, nil); err == nil {
			t.Errorf("%s: want it refused", name)
		}
	}
}

func TestInformationalResponsesAreForwarded(t *testing.T) {
	t.Parallel()
	s := serve(t, respondWith("HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"+ok))
	var told []string
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, header textproto.MIMEHeader) error {
			told = append(told, header.Get("Link"))
			return nil
		},
	})
	if _, err := s.send(newRequest(ctx, t, http.MethodGet, nil)); err != nil || len(told) != 1 || told[0] != "<x>" {
		t.Fatalf("want the hint told, got %q and %v", told, err)
	}
}

// TestWhoLeaves cancels a request while the server processes it and during its response, and closes a response that was
// read in part. The connection ends, so that the server stops writing the rest.
func TestWhoLeaves(t *testing.T) {
	t.Parallel()
	const before, within, closes = "before the response", "within the response", "closes the response"
	for _, when := range []string{before, within, closes} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			ended, arrived := make(chan error, 1), make(chan struct{})
			s := serve(t, atFirst(func(conn net.Conn, read *bufio.Reader) {
				_, _ = http.ReadRequest(read)
				if when != before {
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"+ok)
				}
				close(arrived)
				_, err := read.ReadByte()
				ended <- err
			}))
			ctx, leave := context.WithCancelCause(t.Context())
			defer leave(nil)
			if when == before {
				go func() {
					<-arrived
					leave(errTest)
				}()
			}
			res, err := s.RoundTrip(newRequest(ctx, t, http.MethodGet, nil))
			if when != before {
				must.Do(t, err)
				must.Get(io.ReadFull(res.Body, make([]byte, 10)))(t)
				if when == within {
					leave(errTest)
					_, err = io.ReadAll(res.Body)
				}
				_ = res.Body.Close()
			}
			if when != closes && !errors.Is(err, errTest) {
				t.Errorf("want the cause, got %v", err)
			}
			if err := <-ended; err == nil {
				t.Error("want the server told")
			}
			s.checkOK(t, http.MethodGet, nil)
		})
	}
}

// TestContextsMayEndAfterTheResponse checks that the end of a finished request's context does not affect another request.
func TestContextsMayEndAfterTheResponse(t *testing.T) {
	t.Parallel()
	s := serve(t, respondWith(ok))
	for range 20 {
		ctx, leave := context.WithCancel(t.Context())
		res, err := s.RoundTrip(newRequest(ctx, t, http.MethodGet, nil))
		must.Do(t, err)
		must.Get(io.ReadAll(res.Body))(t)
		leave()
		_ = res.Body.Close()
	}
	s.checkConns(t, 1)
}

// TestStaleConnections has the server close a connection after its first response. The next request is sent again only
// if it cannot be carried out twice.
func TestStaleConnections(t *testing.T) {
	t.Parallel()
	const again = 1 // requests that arrive
	for _, test := range []struct {
		name, method, body string
		seen               bool // the server has read the second request when it closes the connection
		always             bool // and closes the next ones, too
		arrived            int64
		good               bool
	}{
		{name: "a read, before it is sent", method: "GET", arrived: again, good: true},
		{name: "a write, before it is sent", method: "POST", body: "{}", arrived: again, good: true},
		{name: "a read that was sent", method: "GET", seen: true, arrived: 2, good: true},
		{name: "HEAD", method: "HEAD", seen: true, arrived: 2, good: true},
		{name: "a write that was sent", method: "POST", body: "{}", seen: true, arrived: 1},
		{name: "a write without a body", method: "DELETE", seen: true, arrived: 1},
		{name: "a read that never gets a response", method: "GET", seen: true, always: true, arrived: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var arrived atomic.Int64
			closed := make(chan struct{})
			s := serve(t, func(n int64, conn net.Conn, read *bufio.Reader) {
				for i := 0; ; i++ {
					if n == 0 && i == 1 && !test.seen {
						_ = conn.Close()
						close(closed)
						return
					}
					req, err := http.ReadRequest(read)
					if err != nil {
						return
					}
					_, _ = io.ReadAll(req.Body)
					if n > 0 || i > 0 {
						arrived.Add(1)
					}
					if i == 1 || n > 0 && test.always {
						return
					}
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			})
			must.Get(s.ask(t, http.MethodGet, nil))(t)
			if !test.seen {
				<-closed
			}
			var body io.Reader
			if test.body != "" {
				body = strings.NewReader(test.body)
			}
			_, err := s.ask(t, test.method, body)
			if n := arrived.Load(); (err == nil) != test.good || n != test.arrived {
				t.Errorf("want it served: %t, and to arrive %d times, got %v and %d", test.good, test.arrived, err, n)
			}
		})
	}
}

// TestAWriteThatWasNotSentIsRepeated breaks a connection just before a write is sent.
func TestAWriteThatWasNotSentIsRepeated(t *testing.T) {
	t.Parallel()
	arrived, broken := new(atomic.Int64), new(atomic.Bool)
	s := serve(t, respondTo(func(_ *http.Request, body string) string {
		if body == "{}" {
			arrived.Add(1)
		}
		return ok
	}))
	s.wrap = func(conn net.Conn) net.Conn { return faulty{conn.(*net.TCPConn), broken} }
	s.checkOK(t, http.MethodGet, nil)
	broken.Store(true)
	s.checkOK(t, http.MethodPost, strings.NewReader("{}"))
	if got := arrived.Load(); got != 1 || s.conns.Load() != 2 {
		t.Errorf("want it sent once and on a new connection, got %d times on %d connections", got, s.conns.Load())
	}
}

// TestUnrequestedBytesAreNoResponse has the server send an unsolicited response after its response: at once in
// the same record, or later, alone or before the connection ends.
func TestUnrequestedBytesAreNoResponse(t *testing.T) {
	t.Parallel()
	const smuggled = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"
	for name, together := range map[string]bool{"together": true, "later": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent, next := make(chan struct{}), make(chan struct{})
			s := serve(t, atFirst(func(conn net.Conn, read *bufio.Reader) {
				_, _ = http.ReadRequest(read)
				// The body ends exactly at the end of the read buffer, so what follows it is still in TLS.
				head := "HTTP/1.1 200 OK\r\nContent-Length: 4057\r\n\r\n"
				response := head + strings.Repeat("x", 4057)
				if together {
					response += smuggled
				}
				_, _ = io.WriteString(conn, response)
				<-next
				if !together {
					_, _ = io.WriteString(conn, smuggled)
				}
				close(sent)
				_, _ = io.Copy(io.Discard, read)
			}))
			must.Get(s.ask(t, http.MethodGet, nil))(t)
			close(next)
			<-sent
			s.checkOK(t, http.MethodGet, nil)
			s.checkConns(t, 2)
		})
	}
}

// TestConnectionsThatCannotBeInspectedAreUsedOnce tests connections of custom dialers, which cannot be peeked at.
func TestConnectionsThatCannotBeInspectedAreUsedOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, respondWith(ok))
	s.wrap = func(conn net.Conn) net.Conn { return blind{conn} }
	s.checkOK(t, http.MethodGet, nil)
	s.checkOK(t, http.MethodGet, nil)
	s.checkConns(t, 2)
}

// TestBodies sends bodies of known and unknown length. The connection is reused.
func TestBodies(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"none": 0, "short": 5, "the longest": listener.MaxHeldBody} {
		for _, known := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				got := make(chan string, 2)
				s := serve(t, respondTo(func(req *http.Request, body string) string {
					if known != (req.ContentLength == int64(size)) {
						return "no response"
					}
					got <- body
					return ok
				}))
				want := strings.Repeat("y", size)
				for range 2 {
					var body io.Reader = strings.NewReader(want)
					if !known {
						body = io.MultiReader(body)
					}
					s.checkOK(t, http.MethodPut, body)
					if body := <-got; body != want {
						t.Errorf("want %d bytes sent, got %d", size, len(body))
					}
				}
				s.checkConns(t, 1)
			})
		}
	}
}

// TestResponseBeforeTheBody has the server refuse a request before it reads the body, as net/http does: it reads a part
// of the rest, and closes the connection.
func TestResponseBeforeTheBody(t *testing.T) {
	t.Parallel()
	s := serve(t, atFirst(func(conn net.Conn, read *bufio.Reader) {
		_, _ = http.ReadRequest(read)
		_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
		_ = conn.(*tls.Conn).CloseWrite()
		_, _ = io.Copy(io.Discard, read)
	}))
	body := bytes.NewReader(make([]byte, listener.MaxHeldBody))
	got, err := s.ask(t, http.MethodPut, body)
	if err != nil || got.code != http.StatusRequestEntityTooLarge || got.body != "no" {
		t.Fatalf("want the refusal, got %v and %v", got, err)
	}
	s.checkOK(t, http.MethodGet, nil)
	s.checkConns(t, 2)
}

// TestResponseAfterTheServerStoppedReading checks that the response is returned even if not all of the body could be
// sent.
func TestResponseAfterTheServerStoppedReading(t *testing.T) {
	t.Parallel()
	const half = writeSize + 1
	broken, responded := new(atomic.Bool), make(chan struct{})
	s := serve(t, atFirst(func(conn net.Conn, read *bufio.Reader) {
		_, _ = http.ReadRequest(read)
		_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
		close(responded)
		<-t.Context().Done()
	}))
	s.wrap = func(conn net.Conn) net.Conn { return faulty{conn.(*net.TCPConn), broken} }
	rest := readerFunc(func(p []byte) (int, error) {
		<-responded
		broken.Store(true)
		return len(p), nil
	})
	req := newRequest(t.Context(), t, http.MethodPost, io.MultiReader(bytes.NewReader(make([]byte, half)), rest))
	req.ContentLength = 2 * half
	if got, err := s.send(req); err != nil || got.code != http.StatusRequestEntityTooLarge || got.body != "no" {
		t.Fatalf("want the refusal, got %v and %v", got, err)
	}
	s.checkOK(t, http.MethodGet, nil)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestFewConnectionsAreIdle sends many requests at once, and counts the idle connections.
func TestFewConnectionsAreIdle(t *testing.T) {
	t.Parallel()
	const many = 2 * maxIdle
	var open atomic.Int64
	all := make(chan struct{})
	s := serve(t, func(_ int64, conn net.Conn, read *bufio.Reader) {
		_, _ = http.ReadRequest(read)
		if open.Add(1) == many {
			close(all)
		}
		defer open.Add(-1)
		<-all
		_, _ = io.WriteString(conn, ok)
		_, _ = read.ReadByte()
	})
	var wait sync.WaitGroup
	for range many {
		wait.Go(func() {
			if got, err := s.ask(t, http.MethodGet, nil); err != nil || got.body != "ok" {
				t.Errorf("want a response, got %v and %v", got, err)
			}
		})
	}
	wait.Wait()
	eventually(t, func() bool { return open.Load() == maxIdle })
	s.CloseIdleConnections()
	eventually(t, func() bool { return open.Load() == 0 })
}

// TestIdleConnectionsEnd advances the clock.
func TestIdleConnectionsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport := NewHTTP1("api:443", &tls.Config{}, nil)
		var open atomic.Int64
		put := func(age time.Duration) {
			ours, theirs := net.Pipe()
			c := newConn(ours, &wire{Conn: ours}, transport.put)
			c.made = time.Now().Add(-age)
			open.Add(1)
			go func() {
				_, _ = theirs.Read(make([]byte, 1))
				open.Add(-1)
			}()
			transport.put(c)
		}
		check := func(after time.Duration, want int64) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := open.Load(); got != want {
				t.Errorf("want %d connections open, got %d", want, got)
			}
		}
		put(0)
		check(idleFor/2, 1)
		put(0)
		check(idleFor/2+time.Second, 1)
		check(idleFor/2, 0)
		put(maxAge + time.Second) // too old
		check(0, 0)
		put(0)
		check(idleFor+time.Second, 0)
	})
}

// TestSessionsAreResumed checks that a second connection resumes the TLS session.
func TestSessionsAreResumed(t *testing.T) {
	t.Parallel()
	s := serve(t, respondWith(ok))
	s.checkOK(t, http.MethodGet, nil)
	s.CloseIdleConnections()
	s.checkOK(t, http.MethodGet, nil)
	if s.conns.Load() != 2 || s.resumed.Load() != 1 {
		t.Errorf("want the second of 2 connections resumed, got %d of %d", s.resumed.Load(), s.conns.Load())
	}
}

// TestNothingWasSent checks neverSent for errors of connecting.
func TestNothingWasSent(t *testing.T) {
	t.Parallel()
	s := serve(t, func(int64, net.Conn, *bufio.Reader) {})
	s.config.RootCAs = x509.NewCertPool()
	var certificate *tls.CertificateVerificationError
	if _, err := s.ask(t, http.MethodPost, nil); !neverSent(err) || !errors.As(err, &certificate) {
		t.Errorf("an unauthenticated server: want an error about the connection with its reason, got %v", err)
	}
	s.dial = func(context.Context, string, string) (net.Conn, error) { return nil, errTest }
	if _, err := s.ask(t, http.MethodPost, nil); !neverSent(err) || !errors.Is(err, errTest) {
		t.Errorf("no way: want an error about the connection with its reason, got %v", err)
	}
}

// TestRequestsThatAreNotSent checks that ambiguous requests are refused.
func TestRequestsThatAreNotSent(t *testing.T) {
	t.Parallel()
	s := serve(t, respondWith(ok))
	for name, change := range map[string]func(*http.Request){
		"a method of two words":   func(r *http.Request) { r.Method = "GET /x" },
		"no method":               func(r *http.Request) { r.Method = "" },
		"CONNECT":                 func(r *http.Request) { r.Method = "CONNECT" },
		"another server":          func(r *http.Request) { r.URL.Opaque = "http://x/" },
		"a name of two":           func(r *http.Request) { r.Header["A: b\r\nC"] = []string{"x"} },
		"a value of two lines":    func(r *http.Request) { r.Header["A"] = []string{"x\r\nB: c"} },
		"a value with a NUL":      func(r *http.Request) { r.Header["A"] = []string{"\x00"} },
		"a length of its own":     func(r *http.Request) { r.Header["content-length"] = []string{"5"} },
		"an encoding of its own":  func(r *http.Request) { r.Header["transfer-Encoding"] = []string{"chunked"} },
		"another host":            func(r *http.Request) { r.Header["hOST"] = []string{"x"} },
		"an upgrade":              func(r *http.Request) { r.Header["Upgrade"] = []string{"websocket"} },
		"something about the hop": func(r *http.Request) { r.Header["Connection"] = []string{"Authorization"} },
	} {
		body := &closing{Reader: strings.NewReader("x")}
		req := newRequest(t.Context(), t, http.MethodPost, body)
		change(req)
		if _, err := s.RoundTrip(req); err == nil { //nolint:bodyclose // closed
			t.Errorf("%s: want it refused", name)
		}
		if !body.closed {
			t.Errorf("%s: want the body closed", name)
		}
	}
	s.checkConns(t, 0)
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}
