package relay

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// server runs the behavior that a test defines for each TLS connection.
type server struct {
	*HTTP1
	address        string
	tls            *tls.Config
	conns, resumed atomic.Int64
	wrap           func(net.Conn) net.Conn // of the client's side; nil for none
}

// serve calls behave for each connection, numbered from 0, and closes the connection afterwards.
func serve(tb testing.TB, behave func(n int64, conn net.Conn, read *bufio.Reader)) *server {
	tb.Helper()
	standard := httptest.NewTLSServer(nil) // for its certificate
	standard.Close()
	listener := must.Get((&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0"))(tb)
	s := &server{address: listener.Addr().String(), tls: standard.TLS.Clone()}
	s.tls.NextProtos = []string{"http/1.1"}
	roots := x509.NewCertPool()
	roots.AddCert(standard.Certificate())
	s.HTTP1 = NewHTTP1(
		s.address, &tls.Config{RootCAs: roots}, func(ctx context.Context, network, to string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, to)
			if err == nil && s.wrap != nil {
				conn = s.wrap(conn)
			}
			return conn, err
		},
	)
	var open sync.WaitGroup
	var mu sync.Mutex
	var accepted []net.Conn
	go func() {
		for {
			under, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			accepted = append(accepted, under)
			mu.Unlock()
			open.Go(func() {
				defer under.Close() //nolint:errcheck // however it went
				conn := tls.Server(under, s.tls)
				if conn.HandshakeContext(tb.Context()) != nil {
					return
				}
				if conn.ConnectionState().DidResume {
					s.resumed.Add(1)
				}
				behave(s.conns.Add(1)-1, conn, bufio.NewReader(conn))
				_ = conn.Close()
			})
		}
	}()
	tb.Cleanup(func() {
		s.CloseIdleConnections()
		_ = listener.Close()
		mu.Lock()
		for _, conn := range accepted {
			_ = conn.Close()
		}
		mu.Unlock()
		open.Wait()
	})
	return s
}

// respondWith responds to each request with the next of responses, and repeats the last.
func respondWith(responses ...string) func(int64, net.Conn, *bufio.Reader) {
	var n atomic.Int64
	return respondTo(func(*http.Request, string) string { return responses[min(int(n.Add(1)), len(responses))-1] })
}

// respondTo responds to each request and its body.
func respondTo(respond func(req *http.Request, body string) string) func(int64, net.Conn, *bufio.Reader) {
	return func(_ int64, conn net.Conn, read *bufio.Reader) {
		for {
			req, err := http.ReadRequest(read)
			if err != nil {
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			if _, err := io.WriteString(conn, respond(req, string(body))); err != nil {
				return
			}
		}
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func newRequest(ctx context.Context, tb testing.TB, method string, body io.Reader) *http.Request {
	tb.Helper()
	return must.Get(http.NewRequestWithContext(ctx, method, "https://api/path", body))(tb)
}

// response is one whose body was read.
type response struct {
	code    int
	trailer http.Header
	body    string
}

// ask sends a request and reads the whole response.
func (s *server) ask(t *testing.T, method string, body io.Reader) (response, error) {
	t.Helper()
	return s.send(newRequest(t.Context(), t, method, body))
}

func (s *server) send(req *http.Request) (response, error) {
	res, err := s.RoundTrip(req)
	if err != nil {
		return response{}, err
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	return response{res.StatusCode, res.Trailer, string(text)}, err
}

// checkOK expects the usual response.
func (s *server) checkOK(t *testing.T, method string, body io.Reader) {
	t.Helper()
	if got, err := s.ask(t, method, body); err != nil || got.code != http.StatusOK || got.body != "ok" {
		t.Fatalf("want the usual response, got %v and %v", got, err)
	}
}

// checkConns expects this number of connections so far.
func (s *server) checkConns(t *testing.T, want int64) {
	t.Helper()
	if n := s.conns.Load(); n != want {
		t.Errorf("want %d connections, got %d", want, n)
	}
}

func eventually(t *testing.T, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !check(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited too long")
		}
	}
}

// faulty is a connection that a test breaks. It can be peeked at.
type faulty struct {
	*net.TCPConn
	broken *atomic.Bool
}

func (c faulty) Write(p []byte) (int, error) {
	if c.broken.CompareAndSwap(true, false) {
		return 0, &net.OpError{Op: "write", Err: syscall.EPIPE}
	}
	return c.TCPConn.Write(p)
}

// blind is a connection that cannot be peeked at.
type blind struct{ net.Conn }

var errTest = errors.New("as the test wants it")

// atFirst serves the first connection with first, and responds ok on all later ones.
func atFirst(first func(net.Conn, *bufio.Reader)) func(int64, net.Conn, *bufio.Reader) {
	return func(n int64, conn net.Conn, read *bufio.Reader) {
		if n > 0 {
			respondWith(ok)(n, conn, read)
			return
		}
		first(conn, read)
	}
}
