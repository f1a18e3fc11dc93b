package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// begin sends the beginning of a header with n short fields, and never its end.
func (c *rawHTTP2) begin(t *testing.T, n int) {
	t.Helper()
	fields := pseudo("GET", "/a")
	for range n {
		fields = append(fields, [2]string{"a", "b"})
	}
	block := c.block(t, fields...)
	piece := block[:min(len(block), maxFrame)]
	if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: piece, EndStream: true}); err != nil {
		t.Fatal(err)
	}
	for block = block[len(piece):]; len(block) > 0; block = block[len(piece):] {
		piece = block[:min(len(block), maxFrame)]
		if err := c.WriteContinuation(1, false, piece); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnfinishedHeadersCount has strangers begin large headers on many connections. What these take in memory stays within
// the share of strangers: those that were begun first are closed. A user gets in meanwhile.
func TestUnfinishedHeadersCount(t *testing.T) {
	t.Parallel()
	const share, connections, size = 4 << 20, 12, 30_000
	for name, begin := range map[string]func(t *testing.T, p *proxy){
		"HTTP/1": func(t *testing.T, p *proxy) {
			t.Helper()
			_ = p.raw(t, nil, "GET /a HTTP/1.1\nHost: x\n"+strings.Repeat("a:b\n", size/len("a:b\r\n")))
		},
		"HTTP/2": func(t *testing.T, p *proxy) { t.Helper(); p.rawHTTP2(t, nil).begin(t, size) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, limit(budget.Bytes, budget.Unauthenticated, share))
			for range connections {
				begin(t, p)
			}
			// What came together with the end of the handshake does not count, so a few more may fit.
			const fit = share/(size*unusedHTTP1) + 2
			eventually(t, func() bool { return p.open.evicted.Load() >= connections-fit })
			if got := p.budget.Held(budget.Bytes); got > share || got < share/4 {
				t.Errorf("want what was sent counted, up to %d bytes, got %d", share, got)
			}
			token := http.Header{"Long": {strings.Repeat("x", 2*unusedFree)}}
			if got := p.get(t, p.as(t, "jane"), "/a", token); got.Code != http.StatusOK {
				t.Errorf("want a user served, got %d: %s", got.Code, got.Body)
			}
			large := http.Header{"Long": {strings.Repeat("x", 3*unusedTolerated)}}
			if got := p.get(t, p.as(t, "joe"), "/a", large); got.Code != http.StatusOK {
				t.Errorf("want a user with a large header served, got %d: %s", got.Code, got.Body)
			}
		})
	}
}

// TestLongPathsCount has a user ask for long paths, and read no answer.
func TestLongPathsCount(t *testing.T) {
	t.Parallel()
	const share, asked, size = 1 << 20, 12, 100_000
	p := startProxy(t, limit(budget.Bytes, budget.PerUser, share))
	c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "mallory"))
	c.readNothing(t)
	fit, code := int64(0), 0
	for i := range uint32(asked) {
		block := c.block(t, pseudo("GET", "/a?"+strings.Repeat("x", size))...)
		err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block[:maxFrame], EndStream: true})
		for block = block[maxFrame:]; err == nil && len(block) > 0; {
			n := min(len(block), maxFrame)
			err = c.WriteContinuation(2*i+1, n == len(block), block[:n])
			block = block[n:]
		}
		if err != nil {
			t.Fatal(err)
		}
		if code = c.answer(t, 2*i+1); code != http.StatusOK {
			break
		}
		fit++
	}
	if code != http.StatusTooManyRequests || fit == 0 {
		t.Errorf("want a request refused after others, got %d after %d", code, fit)
	}
	if got := p.budget.HeldByUser(budget.Bytes, "mallory"); got > share || got < fit*2*size {
		t.Errorf("want the paths of answers that are not read counted, up to %d bytes, got %d", share, got)
	}
}

// TestLargeHeadsAreForgotten looks at what net/http keeps until the client takes the answer.
func TestLargeHeadsAreForgotten(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		size int
		kept bool
	}{"short": {100, true}, "long": {2 * small, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, err := http.NewRequestWithContext(t.Context(), "GET", "/"+strings.Repeat("x", test.size), nil)
			if err != nil {
				t.Fatal(err)
			}
			req.ProtoMajor, req.RequestURI = 2, req.URL.RequestURI()
			seen := 0
			useReceived(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				seen = len(req.URL.Path)
			})).ServeHTTP(nil, req)
			if seen <= test.size || (len(req.RequestURI) > 0) != test.kept || (len(req.URL.Path) > 0) != test.kept {
				t.Errorf("want the path seen, and afterwards kept: %t, got %d and %d", test.kept, seen, len(req.RequestURI))
			}
		})
	}
}

// TestCompleteHeadersAreOfUse looks at what a connection has sent without effect, before and after a header is complete.
func TestCompleteHeadersAreOfUse(t *testing.T) {
	t.Parallel()
	c := newClientConnections(budget.New(budget.Defaults(), nil), 1).admit(deadEnd{})
	defer c.Close() //nolint:errcheck // it goes nowhere
	c.certified.Store(true)
	if err := c.countUnused(2 * unusedTolerated); err != nil || c.unused.held.Load() == 0 {
		t.Fatalf("want the header counted before it is complete, got %v", err)
	}
	useReceived(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if bytes, held := c.unused.bytes.Load(), c.unused.held.Load(); bytes != 0 || held != 0 {
			t.Errorf("want it forgotten as soon as it is complete, got %d bytes, for which %d are held", bytes, held)
		}
	})).ServeHTTP(nil, httptest.NewRequestWithContext(withConnection(t.Context(), c), "GET", "/a", nil))
}

// TestTheProxyForgetsHeaders sends a long header, which is complete.
func TestTheProxyForgetsHeaders(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	conn := p.raw(
		t,
		clientCertificate(t, p.signerCA, "jane"),
		"GET /a HTTP/1.1\nHost: x\nA: "+strings.Repeat("b", small)+"\n\n",
	)
	res, err := http.ReadResponse(readerOf(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if got := p.connection(t).unused.bytes.Load(); got > unusedFree {
		t.Errorf("want nothing counted after the answer, got %d bytes", got)
	}
}

// TestMemoryOfWhatIsUnused looks at how much memory counts for what came to nothing.
func TestMemoryOfWhatIsUnused(t *testing.T) {
	t.Parallel()
	const long = 3 * unusedStep
	for name, test := range map[string]struct {
		bytes, bodies int64
		http1         bool
		want          int64
	}{
		"a short header":                  {bytes: unusedFree},
		"a header":                        {bytes: unusedFree + 1, want: (unusedFree + 1) * unusedHTTP2},
		"a header in HTTP/1":              {bytes: unusedFree + 1, http1: true, want: (unusedFree + 1) * unusedHTTP1},
		"a longer header":                 {bytes: long - 1, want: long * unusedHTTP2},
		"a longer header in HTTP/1":       {bytes: long - 1, http1: true, want: long * unusedHTTP1},
		"more fields than net/http keeps": {bytes: 10 * mostFields, want: 10*mostFields + mostFields},
		"beside a body":                   {bytes: long - 1, bodies: 1, want: (long - 1) * unusedWithBodyHTTP2},
		"beside a body in HTTP/1":         {bytes: long - 1, bodies: 1, http1: true, want: (long - 1) * unusedWithBody},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := &unused{}
			u.bytes.Store(test.bytes)
			u.bodies.Store(test.bodies)
			u.http1.Store(test.http1)
			if got := u.memory(); got != test.want {
				t.Errorf("want %d bytes for %d, got %d", test.want, test.bytes, got)
			}
		})
	}
}

// TestHeadersOfRefusalsAreForgotten has a stranger and a user be refused with a large header.
func TestHeadersOfRefusalsAreForgotten(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		size, code int
		kept       bool
	}{
		"short":  {100, http.StatusUnauthorized, true},
		"long":   {2 * small, http.StatusUnauthorized, false},
		"served": {2 * small, http.StatusOK, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := budget.New(budget.Defaults(), nil)
			c := newClientConnections(b, 1).admit(deadEnd{})
			defer c.Close() //nolint:errcheck // it goes nowhere
			req := httptest.NewRequestWithContext(context.WithValue(t.Context(), connectionKey{}, c), "GET", "/a", nil)
			req.ProtoMajor = 2
			req.Header.Set("X-A", strings.Repeat("x", test.size))
			answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(test.code) })
			setUp(NewMetrics().measure(limitMisuse(answer, b))).ServeHTTP(httptest.NewRecorder(), req)
			if got := len(req.Header) > 0; got != test.kept {
				t.Errorf("want the header kept afterwards: %t, got %t", test.kept, got)
			}
		})
	}
}

// TestWaitingHeadersCount has requests whose bodies do not come fill the gate of a connection. Large headers behind them
// wait as far as the share of bytes goes.
func TestWaitingHeadersCount(t *testing.T) {
	t.Parallel()
	const share, large = 1 << 20, 200_000
	p := startProxy(t, limit(budget.Bytes, budget.Unauthenticated, share))
	c := p.rawHTTP2(t, nil)
	for i := range uint32(maxUndecided) {
		c.request(t, 2*i+1, true, false, append(pseudo("POST", loginPath), [2]string{"content-length", "10"})...)
	}
	conn := p.connection(t)
	eventually(t, func() bool { inside, _ := conn.gate.counts(); return inside == maxUndecided })
	go func() { _ = c.answers(t) }()
	for i := uint32(maxUndecided); conn.refused.Load() == 0; i++ {
		if i == maxUndecided+2*share/large {
			t.Fatal("want large headers that wait refused")
		}
		block := c.block(t, append(pseudo("GET", "/a"), [2]string{"x", strings.Repeat("y", large)})...)
		err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block[:maxFrame], EndStream: true})
		for block = block[maxFrame:]; err == nil && len(block) > 0; {
			n := min(len(block), maxFrame)
			err = c.WriteContinuation(2*i+1, n == len(block), block[:n])
			block = block[n:]
		}
		before := i - maxUndecided
		eventually(t, func() bool {
			_, waiting := conn.gate.counts()
			return waiting > int(before) || conn.refused.Load() > 0 || isClosed(conn.gone)
		})
	}
	if _, waiting := conn.gate.counts(); waiting > share/large {
		t.Errorf("want at most %d large headers that wait, got %d", share/large, waiting)
	}
}

// deadEnd is a connection on which an endless stream of bytes comes.
type deadEnd struct{ net.Conn }

func (deadEnd) Read(p []byte) (int, error)  { return len(p), nil }
func (deadEnd) Write(p []byte) (int, error) { return len(p), nil }
func (deadEnd) Close() error                { return nil }
func (deadEnd) RemoteAddr() net.Addr        { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

// TestFramesWithoutEffect reads what nothing follows from: slowly when there is more of it, and in the end no more. What
// is of use in between makes up for it.
func TestFramesWithoutEffect(t *testing.T) {
	t.Parallel()
	frame := make([]byte, 8<<10)
	for name, test := range map[string]struct {
		size    int // of a piece; 0: 8 KiB
		prepare func(*clientConn)
		between func(*clientConn)
		most    int64 // 0: there is no end
	}{
		"nothing else":       {most: maxUnused},
		"beside a body":      {prepare: func(c *clientConn) { c.unused.bodies.Add(1) }, most: maxUnused + connectionBody},
		"complete headers":   {between: func(c *clientConn) { c.unused.useAll() }},
		"a body":             {between: func(c *clientConn) { c.useBody(len(frame)) }},
		"a long answer":      {between: func(c *clientConn) { c.useAnswer(4 * len(frame)) }},
		"an upgrade":         {prepare: func(c *clientConn) { c.unused.upgraded.Store(true) }},
		"pings now and then": {size: unusedForgiven, between: func(*clientConn) { time.Sleep(time.Second) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := budget.New(budget.Defaults(), nil)
				all := newClientConnections(b, 1)
				c := all.admit(deadEnd{})
				c.certified.Store(true)
				if test.prepare != nil {
					test.prepare(c)
				}
				began := time.Now()
				var read int64
				var err error
				for err == nil && read < 10*maxUnused {
					_, err = c.Read(frame[:cmp.Or(test.size, len(frame))])
					read += int64(cmp.Or(test.size, len(frame)))
					if test.between != nil {
						test.between(c)
					}
				}
				switch {
				case test.most == 0 && err != nil:
					t.Errorf("want no end, got %v after %d bytes", err, read)
				case test.most == 0:
					if held := c.unused.held.Load(); held != 0 {
						t.Errorf("want nothing held, got %d bytes", held)
					}
				case !errors.Is(err, errUnused) || read > test.most+2*int64(len(frame)) || all.misused.Load() != 1:
					t.Errorf("want the end after %d bytes, got %v after %d", test.most, err, read)
				case time.Since(began) < (maxUnused-unusedPaced-unusedSpeed)*time.Second/unusedSpeed:
					t.Errorf("want %d bytes read slowly, they took %s", read, time.Since(began))
				}
				_ = c.Close()
				if held := b.Held(budget.Bytes); held != 0 {
					t.Errorf("want nothing held after the connection, got %d bytes", held)
				}
			})
		})
	}
}

// TestFloodsOfFrames sends frames that nothing follows from until the connection ends.
func TestFloodsOfFrames(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(f *http2.Framer) error{
		"PRIORITY":      func(f *http2.Framer) error { return f.WritePriority(1, http2.PriorityParam{Weight: 3}) },
		"SETTINGS":      func(f *http2.Framer) error { return f.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize}) },
		"unknown":       func(f *http2.Framer) error { return f.WriteRawFrame(0x10, 0, 0, nil) },
		"WINDOW_UPDATE": func(f *http2.Framer) error { return f.WriteWindowUpdate(0, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "mallory"))
			c.request(t, 1, false, false, pseudo("GET", "/a")...)
			if got := c.answer(t, 1); got != http.StatusOK {
				t.Fatalf("want an answer, got %d", got)
			}
			go func() { _, _ = io.Copy(io.Discard, c.conn) }()
			var many bytes.Buffer
			for framer := http2.NewFramer(&many, nil); many.Len() < maxFrame; {
				if err := write(framer); err != nil {
					t.Fatal(err)
				}
			}
			_ = c.conn.SetDeadline(time.Now().Add(time.Minute))
			for sent := 0; p.open.misused.Load() == 0; sent += many.Len() {
				if _, err := c.conn.Write(many.Bytes()); err != nil && p.open.misused.Load() == 0 {
					t.Fatalf("want the connection closed for what was sent, got %v after %d bytes", err, sent)
				}
			}
			if got := p.get(t, p.as(t, "jane"), "/a", nil); got.Code != http.StatusOK {
				t.Errorf("want others served, got %d", got.Code)
			}
		})
	}
}

// TestUploadsAndEventsAreOfUse uploads much, and reads very many short pieces of an answer.
func TestUploadsAndEventsAreOfUse(t *testing.T) {
	t.Parallel()
	const size, events = 4 * maxUnused, 30_000
	p := startProxy(t)
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodPost {
				n, _ := io.Copy(io.Discard, req.Body)
				_, _ = io.WriteString(w, strconv.FormatInt(n, 10))
				return
			}
			for range events {
				_, _ = io.WriteString(w, "{}\n")
				_ = http.NewResponseController(w).Flush()
			}
		}
	})
	jane := clientCertificate(t, p.signerCA, "jane")
	if got := p.do(t, p.client(t, jane), "POST", "/a", nil, strings.Repeat("x", size)); got.Body != strconv.Itoa(size) {
		t.Errorf("want the body passed on, got %d: %s", got.Code, got.Body)
	}
	c := p.rawHTTP2(t, jane)
	c.request(t, 1, false, false, pseudo("GET", "/api/v1/pods?watch=true")...)
	for got := 0; got < 3*events; {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("want all events, got %d bytes and %v", got, err)
		}
		if data, ok := frame.(*http2.DataFrame); ok && len(data.Data()) > 0 {
			got += len(data.Data())
			n := uint32(len(data.Data()))
			if err := errors.Join(c.WriteWindowUpdate(0, n), c.WriteWindowUpdate(1, n)); err != nil && got < 3*events {
				t.Fatal(err)
			}
		}
	}
	if got := p.open.misused.Load(); got != 0 {
		t.Errorf("want no connection closed, got %d", got)
	}
	eventually(t, func() bool { return p.budget.Held(budget.Bytes) == 0 })
}
