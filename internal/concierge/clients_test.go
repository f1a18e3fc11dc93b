package concierge

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// fakeConn is a connection from an address, whose client sends without an end.
type fakeConn struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (f *fakeConn) Read(p []byte) (int, error) {
	if f.closed {
		return 0, io.EOF
	}
	return len(p), nil
}
func (f *fakeConn) RemoteAddr() net.Addr { return f.from }
func (f *fakeConn) Close() error         { f.closed = true; return nil }

// incoming is a listener of connections that a test makes up.
type incoming struct {
	net.Listener
	conns chan net.Conn
}

func (i incoming) Accept() (net.Conn, error) { return <-i.conns, nil }

type clientsUnderTest struct {
	*Clients
	listener net.Listener
	conns    chan net.Conn
	port     int
	// meanwhile is called while a request is served, when not nil.
	meanwhile func()
}

func newClientsUnderTest() *clientsUnderTest {
	c := &clientsUnderTest{Clients: NewClients(), conns: make(chan net.Conn, 1)}
	c.listener = c.listen(incoming{conns: c.conns})
	return c
}

// connect opens a connection from an address.
func (c *clientsUnderTest) connect(t *testing.T, host string) (net.Conn, *fakeConn) {
	t.Helper()
	c.port++
	below := &fakeConn{from: &net.TCPAddr{IP: net.ParseIP(host), Port: c.port}}
	c.conns <- below
	conn, err := c.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return conn, below
}

// ask sends a request over a connection, and returns the status: 200 when it was served, 0 when it was broken off.
func (c *clientsUnderTest) ask(conn net.Conn, method, path string, frontProxy bool) (code int, closes bool) {
	req := httptest.NewRequest(method, path, nil)
	req.RemoteAddr = conn.RemoteAddr().String()
	req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{IsCA: frontProxy}}}
	recorder := httptest.NewRecorder()
	defer func() {
		if recover() != nil {
			code = 0
		}
	}()
	c.onlyFrontProxy(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if c.meanwhile != nil {
				c.meanwhile()
			}
			w.WriteHeader(http.StatusOK)
		}),
		func(leaf *x509.Certificate) bool { return leaf.IsCA },
	).ServeHTTP(recorder, req)
	return recorder.Code, recorder.Header().Get("Connection") == "close"
}

// serve has a request of the front proxy pass.
func (c *clientsUnderTest) serve(conn net.Conn) { c.ask(conn, http.MethodGet, "/apis", true) }

func (c *clientsUnderTest) count() (known, unknown int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known, len(c.open) - c.known
}

// TestStrangersReplaceTheirOwn floods the port with connections: those of the API server, and the kubelet's, which has
// no credential, live.
func TestStrangersReplaceTheirOwn(t *testing.T) {
	t.Parallel()
	c := newClientsUnderTest()
	server, ofServer := c.connect(t, "192.0.2.1")
	c.serve(server)
	another, ofAnother := c.connect(t, "192.0.2.2")
	c.serve(another)
	_, ofKubelet := c.connect(t, "192.0.2.3")
	var last *fakeConn
	for range 100 * maxStrangers {
		var conn net.Conn
		conn, last = c.connect(t, "192.0.2.4")
		c.ask(conn, http.MethodGet, "/livez", false)
		if _, unknown := c.count(); unknown > maxStrangers {
			t.Fatalf("%d strangers at a time", unknown)
		}
	}
	for who, conn := range map[string]*fakeConn{
		"the API server": ofServer, "another one": ofAnother, "the kubelet": ofKubelet, "the last stranger": last,
	} {
		if conn.closed {
			t.Errorf("the connection of %s was closed", who)
		}
	}
	if known, unknown := c.count(); known != 2 || unknown != maxStrangers {
		t.Errorf("%d known and %d unknown connections", known, unknown)
	}
	_ = server.Close()
	_ = server.Close()
	if known, _ := c.count(); known != 1 {
		t.Errorf("%d known connections after one of two was closed", known)
	}
}

// TestStrangersOfManyAddresses closes the oldest connection, as no address has more than another.
func TestStrangersOfManyAddresses(t *testing.T) {
	t.Parallel()
	c := newClientsUnderTest()
	var all []*fakeConn
	for i := range maxStrangers + 3 {
		_, below := c.connect(t, fmt.Sprintf("192.0.%d.%d", i/200, i%200+1))
		all = append(all, below)
	}
	for i, one := range all {
		if one.closed != (i < 3) {
			t.Errorf("connection %d: closed is %t", i, one.closed)
		}
	}
}

// TestKnownClientsAreBounded shows that the front proxy has no more connections than there are for all.
func TestKnownClientsAreBounded(t *testing.T) {
	t.Parallel()
	c := newClientsUnderTest()
	for range maxKnown + 3*maxStrangers {
		conn, _ := c.connect(t, "192.0.2.1")
		c.serve(conn)
	}
	if known, unknown := c.count(); known != maxKnown || unknown != maxStrangers {
		t.Errorf("%d known and %d unknown connections", known, unknown)
	}
}

// TestStrangersMayProbe shows what a client may ask that is not the front proxy: the kubelet's probes, one at a time. The
// connection ends with the answer.
func TestStrangersMayProbe(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method, path string
		frontProxy   bool
		want         int
	}{
		{"GET", "/livez", false, 200},
		{"HEAD", "/readyz?verbose", false, 200},
		{"POST", "/livez", false, 403},
		{"GET", "/livez/x", false, 403},
		{"GET", "/apis", false, 403},
		{"POST", "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests", false, 403},
		{"POST", "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests", true, 200},
	} {
		c := newClientsUnderTest()
		conn, below := c.connect(t, "192.0.2.1")
		got, closes := c.ask(conn, test.method, test.path, test.frontProxy)
		if got != test.want || closes == test.frontProxy {
			t.Errorf("%s %s: want %d, got %d, and the connection ends: %t", test.method, test.path, test.want, got, closes)
		}
		_ = conn.Close()
		if got, _ := c.ask(conn, test.method, test.path, true); got != 0 || !below.closed {
			t.Errorf("%s %s: want nothing served on a connection that is closed, got %d", test.method, test.path, got)
		}
	}
	c := newClientsUnderTest()
	conn, _ := c.connect(t, "192.0.2.1")
	c.meanwhile = func() {
		c.meanwhile = nil
		if got, _ := c.ask(conn, http.MethodGet, "/livez", false); got != http.StatusTooManyRequests {
			t.Errorf("want a second probe at a time refused, got %d", got)
		}
	}
	if got, _ := c.ask(conn, http.MethodGet, "/livez", false); got != http.StatusOK {
		t.Errorf("want the first served, got %d", got)
	}
}

// TestStrangersSendLittle shows how much is read of a client, before and after it is known.
func TestStrangersSendLittle(t *testing.T) {
	t.Parallel()
	c := newClientsUnderTest()
	stranger, below := c.connect(t, "192.0.2.1")
	read := func(conn net.Conn, atMost int) (total int, err error) {
		buffer := make([]byte, 1<<10)
		for total < atMost && err == nil {
			var n int
			n, err = conn.Read(buffer)
			total += n
		}
		return total, err
	}
	if total, err := read(stranger, 2*maxStrangerBytes); total != maxStrangerBytes ||
		!errors.Is(err, errStrangerSentTooMuch) || !below.closed {
		t.Errorf("%d bytes were read, closed is %t: %v", total, below.closed, err)
	}
	// Many send little each, and one more.
	large, ofLarge := c.connect(t, "192.0.2.2")
	if _, err := read(large, maxStrangersBytes/8); err != nil {
		t.Fatal(err)
	}
	var small []*fakeConn
	for range 7 {
		conn, below := c.connect(t, "192.0.2.3")
		small = append(small, below)
		if _, err := read(conn, maxStrangersBytes/8-1<<10); err != nil {
			t.Fatal(err)
		}
	}
	last, ofLast := c.connect(t, "192.0.2.4")
	if _, err := read(last, 10<<10); err != nil || ofLast.closed || !ofLarge.closed {
		t.Errorf("want the one closed that has sent most: it is %t, and the one that has sent least %t, %v",
			ofLarge.closed, ofLast.closed, err)
	}
	for i, one := range small {
		if one.closed {
			t.Errorf("connection %d was closed, too", i)
		}
	}
	if got, want := c.bytes, 7*(maxStrangersBytes/8-1<<10)+10<<10; got != want {
		t.Errorf("%d bytes count, want %d", got, want)
	}
	known, below := c.connect(t, "192.0.2.1")
	c.serve(known)
	if total, err := read(known, 2*maxStrangerBytes); err != nil || below.closed {
		t.Errorf("%d bytes were read of a known client: %v", total, err)
	}
}

// TestStrangersSendLargeHeads has heads come that are much longer than what was sent for them.
func TestStrangersSendLargeHeads(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		known    bool
		size     int // of each head
		protocol int
		want     int // heads that are served
	}{
		"large ones":                {size: maxStrangerBytes / 4, protocol: 2, want: 3}, // names and the path count, too
		"one that is too large":     {size: maxStrangerBytes, protocol: 2},
		"short ones":                {size: largeHead / 2, protocol: 2, want: 100},
		"of a client that is known": {known: true, size: maxStrangerBytes, protocol: 2, want: 100},
		"over HTTP/1":               {size: maxStrangerBytes, protocol: 1, want: 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClientsUnderTest()
			conn, below := c.connect(t, "192.0.2.1")
			_, other := c.connect(t, "192.0.2.2")
			if test.known {
				c.serve(conn)
			}
			served := 0
			handler := c.countHeads(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
			for range 100 {
				req := httptest.NewRequest(http.MethodGet, "/", nil)
				req.ProtoMajor, req.RemoteAddr = test.protocol, conn.RemoteAddr().String()
				req.Header.Set("A", strings.Repeat("a", test.size))
				func() {
					defer func() {
						if got := recover(); got != nil && got != any(http.ErrAbortHandler) {
							t.Errorf("panic: %v", got)
						}
					}()
					handler.ServeHTTP(httptest.NewRecorder(), req)
				}()
			}
			if served != test.want || below.closed != (test.want < 100) || other.closed {
				t.Errorf(
					"want %d served, got %d, closed is %t, and of another client %t",
					test.want,
					served,
					below.closed,
					other.closed,
				)
			}
		})
	}
}
