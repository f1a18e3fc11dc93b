package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// rawHTTP2 is a client that writes frames as a test defines them.
type rawHTTP2 struct {
	*http2.Framer
	conn    net.Conn
	encoded bytes.Buffer
	encoder *hpack.Encoder
}

func (p *proxy) rawHTTP2(t *testing.T, certificate *tls.Certificate) *rawHTTP2 {
	t.Helper()
	return p.rawHTTP2Over(t, p.dial(t), certificate)
}

func (p *proxy) rawHTTP2Over(t *testing.T, below net.Conn, certificate *tls.Certificate) *rawHTTP2 {
	t.Helper()
	config := p.clientTLS(certificate)
	config.NextProtos = []string{"h2"}
	config.ServerName = "127.0.0.1"
	conn := tls.Client(below, config)
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	c := &rawHTTP2{Framer: http2.NewFramer(conn, conn), conn: conn}
	c.AllowIllegalWrites = true
	c.encoder = hpack.NewEncoder(&c.encoded)
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	must.Get(io.WriteString(conn, http2.ClientPreface))(t)
	must.Do(t, c.WriteSettings())
	return c
}

// block encodes "name: value" lines. Several blocks of one connection must be sent in this order.
func (c *rawHTTP2) block(t *testing.T, fields ...[2]string) []byte {
	t.Helper()
	c.encoded.Reset()
	for _, field := range fields {
		must.Do(t, c.encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}))
	}
	return bytes.Clone(c.encoded.Bytes())
}

// request sends a request, or trailers, on a stream; without a body, it ends the stream.
func (c *rawHTTP2) request(t *testing.T, stream uint32, body bool, fields ...[2]string) {
	t.Helper()
	must.Do(t, c.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: c.block(t, fields...), EndHeaders: true, EndStream: !body,
	}))
}

// begin sends a GET on a stream of a connection that may have ended.
func (c *rawHTTP2) begin(t *testing.T, stream uint32, path string) error {
	t.Helper()
	return c.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: c.block(t, pseudo("GET", path)...), EndHeaders: true, EndStream: true,
	})
}

// status returns the status of a stream, or 0 when the stream or the connection was ended.
func (c *rawHTTP2) status(t *testing.T, stream uint32) int {
	t.Helper()
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			return 0
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = c.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			if frame.StreamID == stream {
				status := must.Get(strconv.Atoi(frame.PseudoValue("status")))(t)
				return status
			}
		case *http2.RSTStreamFrame:
			if frame.StreamID == stream {
				return 0
			}
		case *http2.GoAwayFrame:
			if frame.ErrCode != http2.ErrCodeNo {
				return 0
			}
		}
	}
}

func pseudo(method, path string) [][2]string {
	return [][2]string{{":method", method}, {":scheme", "https"}, {":authority", "proxy"}, {":path", path}}
}

// TestHostileHTTP2 sends requests that HTTP/2 can express and HTTP/1.1 cannot. The API server speaks HTTP/1.1, where
// they would be harmful.
func TestHostileHTTP2(t *testing.T) {
	t.Parallel()
	get := pseudo("GET", "/a")
	more := func(fields [][2]string, pairs []string) [][2]string {
		for pair := range slices.Chunk(pairs, 2) {
			fields = append(fields, [2]string(pair))
		}
		return fields
	}
	with := func(pairs ...string) [][2]string { return more(pseudo("GET", "/a"), pairs) }
	post := func(pairs ...string) [][2]string { return more(pseudo("POST", "/a"), pairs) }
	from := func(scheme, authority string) [][2]string {
		return [][2]string{{":method", "GET"}, {":scheme", scheme}, {":authority", authority}, {":path", "/a"}}
	}
	aGet, aPost := []string{"GET /a "}, []string{"POST /a {}"}
	for _, test := range []struct {
		name     string
		fields   [][2]string
		body     string
		trailers [][2]string
		want     int // 0: stream or connection ended
		arrived  []string
	}{
		{name: "a plain request", fields: get, want: 200, arrived: aGet},
		{name: "CR LF in a value", fields: with("x", "a\r\nimpersonate-user: root")},
		{name: "LF in a value", fields: with("x", "a\nimpersonate-user: root")},
		{name: "CR in a value", fields: with("x", "a\rb")},
		{name: "NUL in a value", fields: with("x", "a\x00b")},
		{name: "CR LF in a name", fields: with("x\r\nimpersonate-user", "root")},
		{name: "a colon in a name", fields: with("impersonate-user: root\r\nx", "y")},
		{name: "a space in a name", fields: with("impersonate-user ", "root")},
		{name: "capitals in a name", fields: with("Impersonate-User", "root")},
		{name: "a name of no letters", fields: with("", "root")},
		{name: "an unknown pseudo header", fields: with(":impersonate-user", "root")},
		{name: "CR LF in the path", fields: pseudo("GET", "/a HTTP/1.1\r\nImpersonate-User: root\r\nX: y")},
		{name: "a space in the path", fields: pseudo("GET", "/a b"), want: 200, arrived: []string{"GET /a%20b "}},
		{name: "no path", fields: pseudo("GET", "")},
		{name: "a path without a slash", fields: pseudo("GET", "a")},
		{name: "absolute form in the path", fields: pseudo("GET", "http://other/a"), want: 400},
		{name: "an asterisk", fields: pseudo("GET", "*"), want: 400},
		{name: "CR LF in the method", fields: pseudo("GET /smuggled HTTP/1.1\r\nX: y\r\n\r\nGET", "/a")},
		{name: "a space in the method", fields: pseudo("GET /smuggled", "/a"), want: 400},
		{name: "CR LF in the authority", fields: from("https", "proxy\r\nImpersonate-User: root")},
		{name: "a path in the authority", fields: from("https", "proxy/smuggled?"), want: 400},
		{name: "another host", fields: with("host", "other"), want: 200, arrived: aGet},
		{name: "another scheme", fields: from("file", "proxy")},
		{name: "CR LF in the scheme", fields: from("https://x\r\nImpersonate-User: root", "proxy")},
		{name: "two paths", fields: with(":path", "/smuggled")},
		{name: "two methods", fields: with(":method", "DELETE")},
		{name: "a pseudo header after others", fields: append([][2]string{{"x", "y"}}, get...)},
		{
			name: "Transfer-Encoding", fields: post("transfer-encoding", "chunked"),
			body: "0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n", want: 400,
		},
		{name: "Connection names who the user is", fields: with("connection", "impersonate-user"), want: 400},
		{name: "an upgrade", fields: with("upgrade", "websocket"), want: 400},
		{
			name:   "an upgrade with a method of its own",
			fields: append([][2]string{{":protocol", "websocket"}}, pseudo("CONNECT", "/a")...),
		},
		{name: "CONNECT", fields: [][2]string{{":method", "CONNECT"}, {":authority", "other:443"}}, want: 405},
		{name: "more body than its length", fields: post("content-length", "1"), body: "1GET /smuggled HTTP/1.1\r\n\r\n"},
		{name: "less body than its length", fields: post("content-length", "50"), body: "{}"},
		{name: "two lengths", fields: post("content-length", "2", "content-length", "3"), body: "{}"},
		{
			name: "trailers that name us", fields: post("trailer", "impersonate-user"), body: "{}",
			trailers: [][2]string{{"impersonate-user", "root"}}, want: 200, arrived: aPost,
		},
		{
			name: "trailers that were not announced", fields: pseudo("POST", "/a"), body: "{}",
			trailers: [][2]string{{"impersonate-user", "root"}, {"authorization", "Bearer x"}}, want: 200, arrived: aPost,
		},
		{
			name: "trailers that are pseudo headers", fields: pseudo("POST", "/a"), body: "{}",
			trailers: [][2]string{{":path", "/smuggled"}},
		},
		{name: "Impersonate-User", fields: with("impersonate-user", "root"), want: 403},
		{name: "Impersonate-User twice", fields: with("impersonate-user", "jane", "impersonate-user", "root"), want: 403},
		{
			name: "a twin with an underscore", fields: with("impersonate_user", "root", "x_remote_user", "root"), want: 200,
			arrived: aGet,
		},
		{
			name: "claims of a front proxy", fields: with("x-remote-user", "root", "x-remote-group", "system:masters"),
			want: 200, arrived: aGet,
		},
		{
			name: "a token of another issuer", fields: with("authorization", "Bearer of-another-issuer"), want: 200,
			arrived: aGet,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProxyTo(t, newAPIServer(t, "HTTP/1.1"))
			p.start(t)
			p.api.allows(noImpersonation)
			c := p.rawHTTP2(t, p.jane(t))
			c.request(t, 1, test.body != "" || test.trailers != nil, test.fields...)
			if test.body != "" {
				must.Do(t, c.WriteData(1, test.trailers == nil, []byte(test.body)))
			}
			if test.trailers != nil {
				c.request(t, 1, false, test.trailers...)
			}
			got := c.status(t, 1)
			if got != test.want && (test.want != 0 || got != 400) {
				t.Errorf("want %d, got %d", test.want, got)
			}
			p.waitServing(t, 0)
			checkArrived(t, test.arrived, p.api.requests())
		})
	}
}

// pipes is a listener that also accepts connections without any buffer, so that the proxy holds all data that a client
// does not read. The kernel's buffers hold several megabytes for a client, and with a small one TCP stalls.
type pipes struct {
	net.Listener
	accepted chan acceptance
}

type acceptance struct {
	conn net.Conn
	err  error
}

// acceptPipes makes pipes the listener of a proxy.
func acceptPipes(into *pipes) prepare {
	return func(_ *proxy, o *Options) {
		into.Listener, into.accepted = o.Listener, make(chan acceptance, 1)
		o.Listener = into
		go func() {
			for {
				conn, err := into.Listener.Accept()
				into.accepted <- acceptance{conn, err}
				if err != nil {
					return
				}
			}
		}()
	}
}

// Accept implements net.Listener.
func (l *pipes) Accept() (net.Conn, error) {
	one := <-l.accepted
	return one.conn, one.err
}

func (l *pipes) dial() net.Conn {
	client, server := net.Pipe()
	l.accepted <- acceptance{conn: server}
	return client
}

// TestFloods has clients abuse HTTP/2. Their connections are closed or read slowly, and others are not affected.
func TestFloods(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		flood func(t *testing.T, c *rawHTTP2) error // until the connection ends
		lives bool                                  // it need not end: excess is refused, or read and dropped
		pipe  bool                                  // the proxy holds all data that the client does not read
	}{
		{name: "headers without an end", flood: func(t *testing.T, c *rawHTTP2) error {
			t.Helper()
			c.request(t, 1, true, pseudo("GET", "/a")...)
			err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: c.block(t, pseudo("GET", "/a")...)})
			for i := 0; err == nil && i < 10_000; i++ { // 80 MB
				err = c.WriteContinuation(3, false, c.block(t, [2]string{"x-" + strconv.Itoa(i), strings.Repeat("x", 8000)}))
			}
			return err
		}},
		{name: "settings", lives: true, flood: func(_ *testing.T, c *rawHTTP2) (err error) {
			for i := 0; err == nil && i < 100_000; i++ {
				err = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)})
			}
			return err
		}},
		{name: "pings", pipe: true, flood: func(_ *testing.T, c *rawHTTP2) (err error) {
			var many bytes.Buffer
			for framer := http2.NewFramer(&many, nil); many.Len() < 15<<10; {
				if err := framer.WritePing(false, [8]byte{1}); err != nil {
					return err
				}
			}
			for i := 0; err == nil && i < 2000; i++ {
				_, err = c.conn.Write(many.Bytes())
			}
			return err
		}},
		{name: "streams opened and reset", lives: true, flood: func(t *testing.T, c *rawHTTP2) (err error) {
			t.Helper()
			for stream := uint32(1); err == nil && stream < 3000; stream += 2 {
				err = errors.Join(c.begin(t, stream, "/slow"), c.WriteRSTStream(stream, http2.ErrCodeCancel))
			}
			return err
		}},
		{name: "more streams than allowed", lives: true, flood: func(t *testing.T, c *rawHTTP2) (err error) {
			t.Helper()
			for stream := uint32(1); err == nil && stream < 200_000; stream += 2 {
				err = c.begin(t, stream, "/slow")
			}
			return err
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var listener pipes
			p := startProxy(t, acceptPipes(&listener))
			var busy atOnce
			p.api.serves(func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path == "/slow" {
					defer busy.count()()
					<-req.Context().Done()
					return
				}
				_, _ = io.WriteString(w, "here you are")
			})
			mallory := clientCertificate(t, p.signerCA, "mallory")
			var c *rawHTTP2
			if test.pipe {
				c = p.rawHTTP2Over(t, listener.dial(), mallory)
			} else {
				c = p.rawHTTP2(t, mallory)
			}
			_ = c.conn.SetDeadline(time.Now().Add(2 * time.Minute))
			var flooding sync.WaitGroup
			flooding.Go(func() {
				err := test.flood(t, c)
				for err == nil && !test.lives { // written data may not have been read yet
					_, err = c.ReadFrame()
				}
				if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
					t.Errorf("want the connection ended, got %v", err)
				}
			})
			jane := p.as(t, "jane")
			for range 10 {
				p.checkServed(t, jane)
			}
			flooding.Wait()
			_ = c.conn.Close()
			if got := busy.most.Load(); got > maxStreams {
				t.Errorf("want at most %d requests of one connection at the API server at a time, got %d", maxStreams, got)
			}
			p.waitServing(t, 0)
			p.checkServed(t, jane)
		})
	}
}

// TestWatchesThatEndSoonAreNoFlood has a client cancel each watch when its response begins. Its connection stays open.
func TestWatchesThatEndSoonAreNoFlood(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.serves(silent)
	client := p.as(t, "jane")
	connections := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			connections++
		}
	}})
	for range 550 {
		_ = p.open(ctx, t, client, "/api/v1/pods?watch=1").Body.Close()
	}
	if connections != 1 {
		t.Errorf("want one connection, got %d", connections)
	}
}

// TestConnectionsOfUnauthenticatedClients checks that connections of unauthenticated clients stay open, and with them their penalties.
func TestConnectionsOfUnauthenticatedClients(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		policy int // the API server's, for anonymous users
		header [][2]string
		want   int
	}{
		"anonymous, where that is somebody": {policy: 403, want: 200},
		"anonymous, where that is nobody":   {policy: 401, want: 401},
		"a bad token":                       {policy: 403, header: [][2]string{{"authorization", "Bearer bad"}}, want: 401},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			p.api.anonymous = func(string) int { return test.policy }
			p.start(t)
			c := p.rawHTTP2(t, nil)
			for _, stream := range []uint32{1, 3} {
				c.request(t, stream, false, append(pseudo("GET", "/a"), test.header...)...)
				if got := c.status(t, stream); got != test.want {
					t.Fatalf("want %d, got %d", test.want, got)
				}
			}
		})
	}
}
