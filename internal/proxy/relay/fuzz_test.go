package relay

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
)

// FuzzRequest sends a fuzzed request. The server must parse exactly one request from what was written, with this
// method, target and body.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/api/v1/pods", "limit=5", "Accept", "*/*", "", true)
	f.Add("POST", "/a b", "x=1 HTTP/1.1", "Content-Length", "0", "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n", true)
	f.Add("PUT", "/%0d%0a", "a\r\nb", "transfer-encoding", "chunked", "0\r\n\r\n", false)
	f.Add("PATCH\r\n", "//x", "", "Transfer-Encoding", "chunked, identity", "body", false)
	f.Add("HEAD", "*", "\x00", "X\r\nY", "a\r\n\r\nGET / HTTP/1.1", "x", true)
	f.Add("GET", "http://evil/", " ", "Expect", "100-continue", "x", false)
	f.Add("OPTIONS", "", "", "Trailer", "X-A", "", true)
	f.Fuzz(func(t *testing.T, method, path, query, name, value, body string, known bool) {
		req := (&http.Request{
			Method: method, URL: &url.URL{Scheme: "https", Host: "api", Path: path, RawQuery: query},
			Header: http.Header{"Authorization": {"Bearer ours"}, name: {value}}, Host: "api",
		}).WithContext(t.Context())
		if body != "" {
			req.Body = io.NopCloser(strings.NewReader(body))
			if req.ContentLength = int64(len(body)); !known {
				req.ContentLength = -1
			}
		}
		if checkRequest(req) != nil {
			return
		}
		under := &script{response: []byte(ok)}
		res, err := under.exchange(req)
		if err != nil {
			return // the connection is closed, whatever was written
		}
		_, _ = io.ReadAll(res.Body)
		_ = res.Body.Close()
		read := bufio.NewReader(bytes.NewReader(under.written.Bytes()))
		got, err := http.ReadRequest(read)
		if err != nil {
			if under.idle() {
				t.Errorf("%q cannot be read: %v, and the connection is used again", under.written.Bytes(), err)
			}
			return // the server responds with 400 and closes
		}
		text, err := io.ReadAll(got.Body)
		if rest, _ := io.ReadAll(read); err != nil || string(text) != body || len(rest) > 0 {
			t.Errorf("want the body %q and nothing else, got %q, %q and %v", body, text, rest, err)
		}
		if got.Method != method || got.Header.Get("Authorization") != "Bearer ours" && name != "Authorization" ||
			got.Host != "api" {
			t.Errorf("want %s to api, got %s to %s with %v", method, got.Method, got.Host, got.Header)
		}
		if want := (&url.URL{Path: path}).EscapedPath(); got.URL.EscapedPath() != want &&
			!strings.HasPrefix(got.RequestURI, "//") && want != "" && want != "*" {
			t.Errorf("want path %q, got %q", want, got.URL.EscapedPath())
		}
	})
}

// FuzzResponse has the server send fuzzed bytes, and compares what the client gets with what net/http parses. If the
// connection is kept, the bytes were exactly one response.
func FuzzResponse(f *testing.F) {
	for _, seed := range []string{
		ok, ok + ok, "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 304 Not Modified\r\n\r\nok",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n2\r\nok\r\n0\r\n\r\n" + ok,
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + ok,
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", "HTTP/1.1 200 OK\r\n\r\n" + ok, "",
		"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
	} {
		for _, method := range []string{"GET", "HEAD", "POST"} {
			f.Add(method, []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, method string, said []byte) {
		if method != http.MethodHead && method != http.MethodPost {
			method = http.MethodGet
		}
		under := &script{response: said}
		req := newRequest(t.Context(), t, method, nil)
		res, err := under.exchange(req)
		var got []byte
		if err == nil {
			got, err = io.ReadAll(res.Body)
			_ = res.Body.Close()
		}
		read := bufio.NewReader(bytes.NewReader(said))
		want, wantErr := http.ReadResponse(read, req) //nolint:bodyclose // no connection is behind it
		for wantErr == nil && want.StatusCode < 200 && want.StatusCode != http.StatusSwitchingProtocols {
			want, wantErr = http.ReadResponse(read, req) //nolint:bodyclose // the same
		}
		var body []byte
		if wantErr == nil {
			body, wantErr = io.ReadAll(want.Body)
		}
		if (err == nil) != (wantErr == nil) || !bytes.Equal(got, body) ||
			err == nil && (res.StatusCode != want.StatusCode || res.ContentLength != want.ContentLength) {
			t.Fatalf("want %q and %v, got %q and %v", body, wantErr, got, err)
		}
		if rest, _ := io.ReadAll(read); under.idle() && (err != nil || want.Close || len(rest) > 0) {
			t.Errorf("the connection is used again after %q, with %q left over", said, rest)
		}
	})
}

// FuzzTokenProtocols checks that no WebSocket subprotocol with a token is forwarded, however it is hidden.
func FuzzTokenProtocols(f *testing.F) {
	const token = "base64url.bearer.authorization.k8s.io.dG9rZW4"
	f.Add(token, "v5.channel.k8s.io")
	f.Add("v5.channel.k8s.io, "+token, "")
	f.Add(" ,"+token+" ,a", token)
	f.Add("Base64url.bearer.authorization.k8s.io.dG9rZW4", "a,,b")
	everybody := websocket.NewProtocolAuthenticator(
		authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "somebody"}}, true, nil
		}),
	)
	f.Fuzz(func(t *testing.T, first, second string) {
		header := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {first, second}}
		var want []string
		for protocol := range strings.SplitSeq(first+","+second, ",") {
			if !strings.HasPrefix(strings.TrimSpace(protocol), tokenProtocol) {
				want = append(want, protocol)
			}
		}
		dropTokenProtocols(header)
		left := strings.ReplaceAll(strings.Join(header["Sec-Websocket-Protocol"], ","), " ", "")
		if strings.Contains(left, ","+tokenProtocol) || strings.HasPrefix(left, tokenProtocol) {
			t.Errorf("a token is left: %q", left)
		}
		if got := strings.Join(want, ","); got != strings.Join(header["Sec-Websocket-Protocol"], ",") {
			t.Errorf("want %q left, got %q", got, left)
		}
		if _, ok, _ := everybody.AuthenticateRequest(&http.Request{Header: header}); ok {
			t.Errorf("somebody can still log in with %q", left)
		}
	})
}

// script is a connection in memory to a server that sends response, whatever it receives, and then nothing.
type script struct {
	net.Conn
	response []byte
	written  bytes.Buffer
	closed   bool
}

func (s *script) exchange(req *http.Request) (*http.Response, error) {
	return newConn(s, &wire{Conn: s}, func(*conn) {}).exchange(req)
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.response) == 0 || s.closed {
		return 0, io.EOF
	}
	n := copy(p, s.response)
	s.response = s.response[n:]
	return n, nil
}

func (s *script) Write(p []byte) (int, error) { return s.written.Write(p) }

func (s *script) Close() error {
	s.closed = true
	return nil
}

func (s *script) SetReadDeadline(time.Time) error { return nil }

// idle is true when the connection is open and has no more bytes.
func (s *script) idle() bool { return !s.closed && len(s.response) == 0 }
