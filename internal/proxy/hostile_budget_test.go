package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"golang.org/x/net/http2"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
)

// What the proxy takes of an answer, or of a watch, that its client does not read.
const (
	answerWindow = 256 << 10
	answerBuffer = 32 << 10
	eventWindow  = 32 << 10
)

// limit changes one bound of a proxy that is to be started.
func limit(r budget.Resource, s budget.Share, n int64) prepare {
	return func(_ *proxy, o *Options) {
		if o.Limits == (budget.Limits{}) {
			o.Limits = budget.Defaults()
		}
		o.Limits[r][s] = n
	}
}

// readNothing makes the API server unable to send anything for a stream.
func (c *rawHTTP2) readNothing(t *testing.T) {
	t.Helper()
	if err := c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
}

// pour writes to each answer until it is told to stop, and counts the bytes that went out.
func pour(sent *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		piece := make([]byte, 16<<10)
		for range 512 { // 8 MiB
			n, err := w.Write(piece)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}
}

// steady waits until a count has not changed for a while, and returns it.
func steady(t *testing.T, count func() int64) int64 {
	t.Helper()
	last, since := count(), time.Now()
	eventually(t, func() bool {
		if now := count(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 500*time.Millisecond
	})
	return last
}

// TestUnreadAnswersAreBounded has a user ask for large answers and read none of them.
func TestUnreadAnswersAreBounded(t *testing.T) {
	t.Parallel()
	const fit = 4
	p := startProxy(t, limit(budget.Bytes, budget.PerUser, fit*(answerWindow+answerBuffer)))
	var sent atomic.Int64
	p.api.set(func() { p.api.serve = pour(&sent) })
	mallory := clientCertificate(t, p.signerCA, "mallory")
	const each, connections = 20, 2
	for range connections {
		c := p.rawHTTP2(t, mallory)
		c.readNothing(t)
		for i := range uint32(each) {
			c.request(t, 2*i+1, false, false, pseudo("GET", "/openapi/v2")...)
		}
	}
	eventually(t, func() bool { return p.budget.Refused(budget.Bytes, budget.PerUser) >= each*connections-fit })
	// What the API server wrote before it was stopped is what the proxy has in memory, or the system on the way.
	const onTheWay = 128 << 10
	if got := steady(t, sent.Load); got > each*connections*(answerWindow+onTheWay) {
		t.Errorf("want at most %d bytes of each answer taken from the API server, got %d of all", answerWindow, got)
	}
	if got := p.budget.HeldByUser(budget.Bytes, "mallory"); got > fit*(answerWindow+answerBuffer) {
		t.Errorf("want the user's share kept, got %d bytes", got)
	}
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }
	})
	if got := p.get(t, p.as(t, "jane"), "/openapi/v2", nil); got.Code != http.StatusOK {
		t.Errorf("want another user served, got %d: %s", got.Code, got.Body)
	}
}

// TestFewAnswersStayUnread has a user ask for more answers than the share and read none of them. Those beyond the share
// end long before their deadline, so the API server is done with them.
func TestFewAnswersStayUnread(t *testing.T) {
	t.Parallel()
	const share, asked = 2, 6
	p := startProxy(
		t,
		limit(budget.Unread, budget.PerUser, share),
		func(_ *proxy, o *Options) { o.WriteTimeout = time.Hour },
	)
	var sent, serving atomic.Int64
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, req *http.Request) {
			serving.Add(1)
			defer serving.Add(-1)
			pour(&sent)(w, req)
		}
	})
	c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "mallory"))
	c.readNothing(t)
	for i := range uint32(asked) {
		c.request(t, 2*i+1, false, false, pseudo("GET", "/openapi/v2")...)
	}
	for reset := 0; reset < asked-share; {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("want %d streams reset, got %d and %v", asked-share, reset, err)
		}
		if _, ok := frame.(*http2.RSTStreamFrame); ok {
			reset++
		}
	}
	eventually(t, func() bool { return serving.Load() == share })
	if got := p.budget.HeldByUser(budget.Unread, "mallory"); got != share {
		t.Errorf("want %d answers of the user unread, got %d", share, got)
	}
}

// TestAnswersThatAreNotReadEnd checks that an answer has a deadline, small or large, known client or not.
func TestAnswersThatAreNotReadEnd(t *testing.T) {
	t.Parallel()
	quick := func(_ *proxy, o *Options) { o.WriteTimeout = 300 * time.Millisecond }
	for name, test := range map[string]struct {
		user string
		path string
	}{
		"a large answer": {user: "mallory", path: "/large"},
		"a small answer": {user: "mallory", path: "/small"},
		"a refusal of a client without a credential": {path: "/small"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			p.api.anonymous = func(string) int { return http.StatusUnauthorized }
			p.start(t, quick)
			var sent atomic.Int64
			p.api.set(func() {
				p.api.serve = func(w http.ResponseWriter, req *http.Request) {
					if req.URL.Path == "/large" {
						pour(&sent)(w, req)
						return
					}
					_, _ = io.WriteString(w, "a few words")
				}
			})
			c := p.rawHTTP2(t, nil)
			if test.user != "" {
				_ = c.conn.Close()
				c = p.rawHTTP2(t, clientCertificate(t, p.signerCA, test.user))
			}
			c.readNothing(t)
			c.request(t, 1, false, false, pseudo("GET", test.path)...)
			if got := c.answer(t, 1); got == 0 {
				t.Fatal("want the head of an answer")
			}
			if p.budget.Held(budget.Requests) == 0 {
				t.Error("want the request counted until its answer is written")
			}
			for ended := false; !ended; {
				frame, err := c.ReadFrame()
				if err != nil {
					t.Fatalf("want the stream reset, got %v", err)
				}
				_, ended = frame.(*http2.RSTStreamFrame)
			}
			eventually(t, func() bool { return p.budget.Held(budget.Requests) == 0 && p.budget.Held(budget.Bytes) == 0 })
		})
	}
	t.Run("HTTP/1", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, quick)
		var sent atomic.Int64
		p.api.set(func() { p.api.serve = pour(&sent) })
		conn := p.raw(t, clientCertificate(t, p.signerCA, "mallory"), "")
		_ = conn.NetConn().(*net.TCPConn).SetReadBuffer(8 << 10)
		for range 3 { // one after the other, more than the system holds
			if _, err := io.WriteString(conn, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, func() bool { return p.readers.ended.Load() > 0 })
		eventually(t, func() bool { serving, _ := p.drain.counts(); return serving == 0 })
	})
	t.Run("a pause between two requests is none in an answer", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, quick)
		conn := p.raw(t, clientCertificate(t, p.signerCA, "jane"), "")
		answers := readerOf(conn)
		for range 3 {
			if _, err := io.WriteString(conn, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(res.Body); err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			time.Sleep(400 * time.Millisecond)
		}
	})
}

// TestStreamsThatAreNotReadAreBounded opens watches and reads none of them. A few may wait as long as they like.
func TestStreamsThatAreNotReadAreBounded(t *testing.T) {
	t.Parallel()
	const fit, watches = 3, 10
	p := startProxy(t, limit(budget.Bytes, budget.PerUser, fit*relay.StreamBytes))
	var sent atomic.Int64
	p.api.set(func() { p.api.serve = pour(&sent) })
	c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "mallory"))
	c.readNothing(t)
	for i := range uint32(watches) {
		c.request(t, 2*i+1, false, false, pseudo("GET", "/api/v1/pods?watch=1&resourceVersion=5")...)
	}
	eventually(t, func() bool { return p.readers.ended.Load() == watches-fit })
	if got := p.budget.HeldByUser(budget.Bytes, "mallory"); got != fit*relay.StreamBytes {
		t.Errorf("want %d bytes counted, got %d", fit*relay.StreamBytes, got)
	}
	if got := steady(t, sent.Load); got > watches*(eventWindow+64<<10) {
		t.Errorf("want at most %d bytes of each watch taken from the API server, got %d of all", eventWindow, got)
	}
	if _, streams := p.drain.counts(); streams != fit {
		t.Errorf("want %d streams left, got %d", fit, streams)
	}
	if got := p.budget.HeldByUser(budget.Streams, "mallory"); got != fit {
		t.Errorf("want %d streams counted, got %d", fit, got)
	}
}

// TestResetsCountOnAllConnections resets streams, fewer on each connection than would close it.
func TestResetsCountOnAllConnections(t *testing.T) {
	t.Parallel()
	for name, share := range map[string]budget.Share{"a user": budget.PerUser, "no user": budget.Unauthenticated} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const fit = 200
			p := startProxy(t, limit(budget.Resets, share, fit))
			var arrived atomic.Int64
			arrival := make(chan struct{}, 10_000)
			p.api.set(func() {
				p.api.serve = func(_ http.ResponseWriter, req *http.Request) {
					if req.URL.Path == "/slow" {
						arrived.Add(1)
						arrival <- struct{}{}
						<-req.Context().Done()
					}
				}
			})
			certificate := clientCertificate(t, p.signerCA, "mallory")
			if share == budget.Unauthenticated {
				certificate = nil
			}
			const connections, batch = 16, 20
			closed := 0
			for range connections {
				c := p.rawHTTP2(t, certificate)
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					for {
						if _, err := c.ReadFrame(); err != nil {
							return
						}
					}
				}()
				for stream := uint32(1); stream < 2*(maxResets-10); stream += 2 * batch {
					var opened, reset bytes.Buffer
					open, cancel := http2.NewFramer(&opened, nil), http2.NewFramer(&reset, nil)
					for i := range uint32(batch) {
						_ = open.WriteHeaders(http2.HeadersFrameParam{
							StreamID: stream + 2*i, BlockFragment: c.block(t, pseudo("GET", "/slow")...), EndHeaders: true, EndStream: true,
						})
						_ = cancel.WriteRSTStream(stream+2*i, http2.ErrCodeCancel)
					}
					_, _ = c.conn.Write(opened.Bytes())
					// When the share is full, no more of them arrive.
					patience := time.After(resetWithin / 5)
					for waiting := batch; waiting > 0; waiting-- {
						select {
						case <-arrival:
							continue
						case <-patience:
						case <-gone:
						}
						break
					}
					_, _ = c.conn.Write(reset.Bytes())
					if isClosed(gone) {
						break
					}
				}
				select {
				case <-gone:
					closed++
				case <-time.After(10 * time.Second):
				}
				_ = c.conn.Close()
				<-gone
			}
			if closed < connections-1 {
				t.Errorf("want all connections closed but perhaps the first, got %d of %d", closed, connections)
			}
			if got := arrived.Load(); got > fit+connections*batch {
				t.Errorf("want little forwarded after the share was used up, got %d requests", got)
			}
			if p.budget.Refused(budget.Resets, share) == 0 {
				t.Error("want the resets counted for all connections together")
			}
			if got := p.get(t, p.as(t, "jane"), "/api/v1/nodes", nil); got.Code != http.StatusOK {
				t.Errorf("want others served, got %d: %s", got.Code, got.Body)
			}
			eventually(t, func() bool { return p.budget.Held(budget.Requests) <= 1 })
		})
	}
}

// TestHeadersCount sends large headers of many small fields, and does not read the answers that refuse them.
func TestHeadersCount(t *testing.T) {
	t.Parallel()
	const fit = 4 << 20
	p := newProxy(t)
	p.api.anonymous = func(string) int { return http.StatusUnauthorized }
	// The bytes alone are to be too much: large headers that are refused fill the share of refusals, too.
	p.start(t, limit(budget.Bytes, budget.Unauthenticated, fit), limit(budget.Resets, budget.Unauthenticated, 0))
	fields := pseudo("GET", "/a")
	for i := range 5000 {
		fields = append(fields, [2]string{"x" + strconv.Itoa(i%50), "y"})
	}
	const connections = 12
	for range connections {
		c := p.rawHTTP2(t, nil)
		c.readNothing(t)
		block := c.block(t, fields...)
		first := min(len(block), maxFrame)
		if err := c.WriteHeaders(
			http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:first], EndHeaders: first == len(block), EndStream: true},
		); err != nil {
			t.Fatal(err)
		}
		for rest := block[first:]; len(rest) > 0; {
			n := min(len(rest), maxFrame)
			if err := c.WriteContinuation(1, n == len(rest), rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		_ = c.answer(t, 1)
	}
	if got := p.budget.HeldUnauthenticated(budget.Bytes); got > fit || got < fit/2 {
		t.Errorf("want the headers of answers that are not read counted, up to %d bytes, got %d", fit, got)
	}
	if p.budget.Refused(budget.Bytes, budget.Unauthenticated) == 0 {
		t.Error("want requests refused")
	}
	if got := p.get(t, p.as(t, "jane"), "/api/v1/nodes", nil); got.Code != http.StatusOK {
		t.Errorf("want users served, got %d: %s", got.Code, got.Body)
	}
}

// TestAuditLogKnowsNoInformationalStatus has clients try to choose the status code in the audit log.
func TestAuditLogKnowsNoInformationalStatus(t *testing.T) {
	t.Parallel()
	file := &auditFile{}
	p := startProxy(t, func(_ *proxy, o *Options) { o.Audit = newAuditLog(t, file) })
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/hints" {
				w.WriteHeader(http.StatusEarlyHints)
			}
			w.WriteHeader(http.StatusCreated)
		}
	})
	certificate := clientCertificate(t, p.signerCA, "jane")
	conn := p.raw(t, certificate, "POST /expected HTTP/1.1\nHost: x\nExpect: 100-continue\nContent-Length: 2\n\n")
	answers := readerOf(conn)
	if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("want 100, got %q, %v", line, err)
	}
	if _, err := io.WriteString(conn, "{}"); err != nil {
		t.Fatal(err)
	}
	p.get(t, p.client(t, certificate), "/hints", nil)
	for _, one := range file.events(t, 2) {
		if got := one.ResponseStatus; got == nil || got.Code != http.StatusCreated {
			t.Errorf("%s: want 201 in the audit log, got %v", one.RequestURI, got)
		}
	}
}

// TestRefusedCredentialsAreSampled presents many bad credentials and counts the lines in the log.
func TestRefusedCredentialsAreSampled(t *testing.T) {
	t.Parallel()
	var lines, summaries atomic.Int64
	p := newProxy(t)
	p.context = func(ctx context.Context) context.Context {
		return klog.NewContext(ctx, funcr.New(func(_, args string) {
			switch {
			case strings.Contains(args, "Left out log lines"):
				summaries.Add(1)
			case strings.Contains(args, "redential"):
				lines.Add(1)
			}
		}, funcr.Options{}))
	}
	p.start(t)
	const bad = 200
	stranger := clientCertificate(t, newCA(t, "a stranger's CA"), "mallory")
	for i := range bad {
		conn := p.raw(t, stranger, fmt.Sprintf("GET /a/%d HTTP/1.1\nHost: x\nConnection: close\n\n", i))
		res, err := http.ReadResponse(readerOf(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusUnauthorized {
			t.Fatalf("want 401, got %d", res.StatusCode)
		}
		_ = conn.Close()
	}
	if got := p.refused.Total(); got != bad {
		t.Errorf("want %d counted, got %d", bad, got)
	}
	// More than one period may have passed.
	if got := lines.Load(); got < 1 || got > 8*logs.SamplesPerPeriod {
		t.Errorf("want a few of %d lines, got %d", bad, got)
	}
	p.refused.Stop(klog.FromContext(p.context(t.Context())))
	if summaries.Load() == 0 {
		t.Error("want the number of the others in the log")
	}
}
