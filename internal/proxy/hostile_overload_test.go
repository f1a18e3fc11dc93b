package proxy

import (
	"bufio"
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
	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// memory sets the memory limit of a proxy.
func memory(bytes int64) prepare {
	return func(_ *proxy, o *Options) { o.FlowControl = flowcontrol.New(flowcontrol.LimitsFor(bytes, 2)) }
}

// held returns how many bytes of a resource all clients hold.
func (p *proxy) held(kind flowcontrol.Resource) int64 { return p.FlowControl.Usage()[kind].Bytes }

// waiting returns the queued operations of a resource, and taken its occupied seats.
func (p *proxy) waiting(kind flowcontrol.Resource) int { return p.FlowControl.Usage()[kind].Waiting }
func (p *proxy) taken(kind flowcontrol.Resource) int   { return p.FlowControl.Usage()[kind].Taken }

// waitReset reads until this number of streams is reset.
func (c *rawHTTP2) waitReset(t *testing.T, want int) {
	t.Helper()
	for reset := 0; reset < want; {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("want %d streams reset, got %d and %v", want, reset, err)
		}
		if _, ok := frame.(*http2.RSTStreamFrame); ok {
			reset++
		}
	}
}

// checkServed expects that other users are served whatever one does.
func (p *proxy) checkServed(t *testing.T, clients ...*http.Client) {
	t.Helper()
	if clients == nil {
		clients = []*http.Client{p.as(t, "jane")}
	}
	for _, client := range clients {
		p.get(t, client, "/api/v1/nodes", nil).check(t, http.StatusOK, "want other users served")
	}
}

// heldBy returns how many bytes of a resource a user holds.
func (p *proxy) heldBy(user string, kind flowcontrol.Resource) int64 {
	return p.FlowControl.HeldBy(flowcontrol.Flow{User: user}, kind)
}

// readNothing prevents the proxy from sending anything on a stream.
func (c *rawHTTP2) readNothing(t *testing.T) {
	t.Helper()
	must.Do(t, c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
}

// pour writes to each response until it is stopped, and counts the bytes that were sent.
func pour(sent *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		piece := make([]byte, 16<<10)
		for range 2048 { // 32 MiB: more than the proxy reads ahead
			n, err := w.Write(piece)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}
}

// steady waits until a count is stable, and returns it.
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

// sendHead sends the header of a request of any length on stream 1, complete or not.
func (c *rawHTTP2) sendHead(t *testing.T, complete bool, fields ...[2]string) {
	t.Helper()
	block := c.block(t, fields...)
	piece := block[:min(len(block), maxFrame)]
	err := c.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: piece, EndStream: true, EndHeaders: complete && len(piece) == len(block),
	})
	for block = block[len(piece):]; err == nil && len(block) > 0; block = block[len(piece):] {
		piece = block[:min(len(block), maxFrame)]
		err = c.WriteContinuation(1, complete && len(piece) == len(block), piece)
	}
	must.Do(t, err)
}

// statuses reads until the connection ends, and counts the responses by status.
func (c *rawHTTP2) statuses(t *testing.T) map[int]int {
	t.Helper()
	got := map[int]int{}
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			return got
		}
		if head, ok := frame.(*http2.MetaHeadersFrame); ok {
			code := 0
			must.Get(fmt.Sscan(head.PseudoValue("status"), &code))(t)
			got[code]++
		}
	}
}

// TestResponsesToSlowClientsAreBounded has a user request more large responses than memory permits, and read none of them.
func TestResponsesToSlowClientsAreBounded(t *testing.T) {
	t.Parallel()
	const size, each, connections = 32 << 20, 40, 2
	p := startProxy(t, memory(size))
	var sent atomic.Int64
	p.api.serves(pour(&sent))
	mallory := clientCertificate(t, p.signerCA, "mallory")
	for range connections {
		c := p.rawHTTP2(t, mallory)
		c.readNothing(t)
		for i := range uint32(each) {
			c.request(t, 2*i+1, false, pseudo("GET", "/openapi/v2")...)
		}
	}
	eventually(t, func() bool { return p.FlowControl.Usage()[flowcontrol.Response].Refused > 0 })
	// What the API server wrote is in the memory of the proxy, or in the kernel.
	const onTheWay = 512 << 10
	if got := steady(t, sent.Load); got > size+each*connections*onTheWay {
		t.Errorf("want little taken from the API server, got %d", got)
	}
	if got := p.heldBy("mallory", flowcontrol.Response); got > size/4 {
		t.Errorf("want the user's share kept, got %d bytes", got)
	}
	p.api.serves(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
	p.checkServed(t)
}

// TestFewResponsesToSlowClientsWait has a user request more responses, or watches, than one may leave unread, and read none of them.
// The excess ones end soon, so the API server finishes them. The others may wait.
func TestFewResponsesToSlowClientsWait(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		path        string
		most, asked int
	}{
		"responses": {"/openapi/v2", 8, 12},
		"watches":   {"/api/v1/pods?watch=1&resourceVersion=5", 64, 70},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, func(_ *proxy, o *Options) { o.WriteTimeout = time.Hour })
			var sent, serving atomic.Int64
			p.api.serves(func(w http.ResponseWriter, req *http.Request) {
				serving.Add(1)
				defer serving.Add(-1)
				pour(&sent)(w, req)
			})
			c := p.rawHTTP2(t, clientCertificate(t, p.signerCA, "mallory"))
			c.readNothing(t)
			for i := range uint32(test.asked) {
				c.request(t, 2*i+1, false, pseudo("GET", test.path)...)
			}
			c.waitReset(t, test.asked-test.most)
			eventually(t, func() bool { return serving.Load() == int64(test.most) })
			p.get(t, p.as(t, "jane"), "/healthz", nil).check(t, http.StatusOK, "want another user served")
		})
	}
}

// TestResponsesToSlowClientsEnd checks that every response has a deadline: small or large, of an authenticated client or
// not.
func TestResponsesToSlowClientsEnd(t *testing.T) {
	t.Parallel()
	quick := func(_ *proxy, o *Options) { o.WriteTimeout = 300 * time.Millisecond }
	for name, test := range map[string]struct {
		user, path string
	}{
		"a large response":                           {user: "mallory", path: "/large"},
		"a small response":                           {user: "mallory", path: "/small"},
		"a refusal of a client without a credential": {path: "/small"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			p.api.anonymous = func(string) int { return http.StatusUnauthorized }
			p.start(t, quick)
			var sent atomic.Int64
			p.api.serves(func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path == "/large" {
					pour(&sent)(w, req)
					return
				}
				_, _ = io.WriteString(w, "a few words")
			})
			c := p.rawHTTP2(t, p.certificateOf(t, test.user))
			c.readNothing(t)
			c.request(t, 1, false, pseudo("GET", test.path)...)
			if got := c.status(t, 1); got == 0 {
				t.Fatal("want the head of a response")
			}
			c.waitReset(t, 1)
			eventually(t, func() bool { return p.held(flowcontrol.Request)+p.held(flowcontrol.Response) == 0 })
		})
	}
	t.Run("HTTP/1", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, quick)
		var sent atomic.Int64
		p.api.serves(pour(&sent))
		conn := p.raw(t, clientCertificate(t, p.signerCA, "mallory"), "")
		_ = conn.NetConn().(*net.TCPConn).SetReadBuffer(8 << 10)
		for range 3 { // one after the other, more than the kernel holds
			must.Get(io.WriteString(conn, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n"))(t)
		}
		eventually(t, func() bool { return sent.Load() > 0 && p.drain.serving.Load() == 0 })
	})
	t.Run("a pause between two requests is none in a response", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, quick)
		conn := p.raw(t, p.jane(t), "")
		responses := bufio.NewReader(conn)
		for range 3 {
			must.Get(io.WriteString(conn, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"))(t)
			readResponse(t, responses)
			time.Sleep(400 * time.Millisecond)
		}
	})
}

// TestResetsSlowDown has a user reset streams on many connections. Few of them reach the API server, and others are not
// affected.
func TestResetsSlowDown(t *testing.T) {
	t.Parallel()
	for _, user := range []string{"mallory", ""} {
		t.Run("user "+user, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			var arrived atomic.Int64
			p.api.serves(func(_ http.ResponseWriter, req *http.Request) {
				if req.URL.Path == "/slow" {
					arrived.Add(1)
					<-req.Context().Done()
				}
			})
			certificate := p.certificateOf(t, user)
			const connections, streams = 4, 2000
			began := time.Now()
			end, stop := context.WithTimeout(t.Context(), 3*time.Second)
			defer stop()
			for range connections {
				c := p.rawHTTP2(t, certificate)
				context.AfterFunc(end, func() { _ = c.conn.Close() })
				go func() { _ = c.statuses(t) }()
				go func() {
					for i := range uint32(streams) {
						var pair bytes.Buffer
						framer := http2.NewFramer(&pair, nil)
						_ = framer.WriteHeaders(http2.HeadersFrameParam{
							StreamID: 2*i + 1, BlockFragment: c.block(t, pseudo("GET", "/slow")...), EndHeaders: true, EndStream: true,
						})
						_ = framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
						if _, err := c.conn.Write(pair.Bytes()); err != nil {
							return
						}
					}
				}()
			}
			for jane := p.as(t, "jane"); end.Err() == nil; {
				p.checkServed(t, jane)
			}
			// A user's penalty passes at an eighth of the processors, a millisecond for each reset; requests of one
			// read are penalized afterwards.
			most := float64(connections*200) + time.Since(began).Seconds()*1000
			if got := arrived.Load(); float64(got) > most {
				t.Errorf("want at most %f requests at the API server, got %d", most, got)
			}
			p.waitServing(t, 0)
		})
	}
}

// TestHeadersCount sends large headers of many small fields, and does not read the responses that refuse them. They
// only take memory from unauthenticated clients.
func TestHeadersCount(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	p.api.anonymous = func(string) int { return http.StatusUnauthorized }
	p.start(t, memory(32<<20))
	fields := pseudo("GET", "/a")
	for i := range 5000 {
		fields = append(fields, [2]string{"x" + strconv.Itoa(i%50), "y"})
	}
	for range 12 {
		c := p.rawHTTP2(t, nil)
		c.readNothing(t)
		c.sendHead(t, true, fields...)
	}
	eventually(t, func() bool { return p.port.Evicted() > 0 })
	if got := p.FlowControl.Memory(); got.Unauthenticated > got.MostUnauthenticated || got.Users != 0 {
		t.Errorf("want no more held than unauthenticated clients may, got %+v", got)
	}
	p.checkServed(t)
}

// TestMemoryOfUsers has a user open more watches than memory permits. Excess ones are refused at once with a
// Retry-After, and others are not affected.
func TestMemoryOfUsers(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	p := startProxy(t, memory(size))
	p.api.serves(func(w http.ResponseWriter, req *http.Request) {
		if strings.Contains(req.RequestURI, "slow") {
			silent(w, req)
		}
	})
	const watch = "/api/v1/pods?watch=1&slow"
	client := p.as(t, "mallory")
	open, last := 0, p.open(t.Context(), t, client, watch)
	for ; last.StatusCode == http.StatusOK; last = p.open(t.Context(), t, client, watch) {
		if open++; open > size/flowcontrol.StreamBytes {
			t.Fatal("want an end")
		}
	}
	if last.StatusCode != http.StatusServiceUnavailable && last.StatusCode != http.StatusTooManyRequests ||
		last.Header.Get("Retry-After") == "" {
		t.Errorf("want a refusal with Retry-After, got %d", last.StatusCode)
	}
	if open < size/2/flowcontrol.StreamBytes {
		t.Errorf("want most of the memory for one user, got %d watches", open)
	}
	p.checkServed(t)
}

// TestConnectionsAreBounded opens more connections than memory permits. Those without a user are evicted.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	p := startProxy(t, memory(4<<20))
	jane := p.as(t, "jane")
	p.get(t, jane, "/api/v1/nodes", nil)
	for range 200 {
		p.dial(t)
	}
	eventually(t, func() bool { return p.port.Evicted() >= 50 })
	p.checkServed(t, jane, p.as(t, "joe"))
	if got := p.heldBy("jane", flowcontrol.Connection); got != flowcontrol.ConnectionBytes {
		t.Errorf("want the user's connection left alone, got %d", got)
	}
}

// TestManyUndecidedRequests has unauthenticated clients start as many logins as possible, whose bodies do not arrive.
// Existing and new users are not affected, and memory stays within its limit.
func TestManyUndecidedRequests(t *testing.T) {
	t.Parallel()
	p := startProxy(t, memory(32<<20))
	jane := p.as(t, "jane")
	p.get(t, jane, "/a", nil)
	for range 30 {
		c := p.rawHTTP2(t, nil)
		for i := range uint32(maxStreams) {
			c.request(t, 2*i+1, true, append(pseudo("POST", loginPath), [2]string{"content-length", "10"})...)
		}
		go func() { _ = c.statuses(t) }()
	}
	eventually(t, func() bool { return p.port.Evicted() > 0 })
	p.checkServed(t, jane, p.as(t, "joe"))
	if got := p.FlowControl.Memory(); got.Unauthenticated > got.MostUnauthenticated {
		t.Errorf("want no more held than unauthenticated clients may, got %+v", got)
	}
}

// TestTrailersCount sends endless trailers after the body of a request, as an unauthenticated client and as a user.
func TestTrailersCount(t *testing.T) {
	t.Parallel()
	for _, user := range []string{"", "mallory"} {
		p := startProxy(t)
		certificate := p.certificateOf(t, user)
		c := p.rawHTTP2(t, certificate)
		c.request(t, 1, true, append(pseudo("POST", loginPath), [2]string{"content-length", "10"})...)
		p.waitServing(t, 1)
		const size = 30_000 // fields of one byte
		trailers := make([][2]string, size)
		for i := range trailers {
			trailers[i] = [2]string{"a", "b"}
		}
		c.sendHead(t, false, trailers...)
		eventually(t, func() bool { return p.held(flowcontrol.Input) >= 4*size })
	}
}

// TestAuditLogKnowsNoInformationalStatus has clients try to choose the status code in the audit log.
func TestAuditLogKnowsNoInformationalStatus(t *testing.T) {
	t.Parallel()
	file := &auditFile{}
	p := startProxy(t, func(_ *proxy, o *Options) { o.Audit = newAuditLog(t, file) })
	p.api.serves(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/hints" {
			w.WriteHeader(http.StatusEarlyHints)
		}
		w.WriteHeader(http.StatusCreated)
	})
	certificate := p.jane(t)
	conn := p.raw(t, certificate, "POST /expected HTTP/1.1\nHost: x\nExpect: 100-continue\nContent-Length: 2\n\n")
	responses := bufio.NewReader(conn)
	if line, err := responses.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("want 100, got %q, %v", line, err)
	}
	must.Get(io.WriteString(conn, "{}"))(t)
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
	other := clientCertificate(t, newCA(t, "another CA"), "mallory")
	for i := range bad {
		got := p.exchange(t, other, get(fmt.Sprint("/a/", i), "Connection: close"))
		if got.Code != http.StatusUnauthorized {
			t.Fatalf("want 401, got %d", got.Code)
		}
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
