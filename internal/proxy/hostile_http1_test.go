package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

const (
	aPost        = "POST /a HTTP/1.1\nHost: proxy\n"
	aChunkedPost = aPost + "Transfer-Encoding: chunked\n"
	aRead        = "GET /a HTTP/1.1\nHost: proxy\n"
	aPod         = "GET /api/v1/namespaces/d/pods/x HTTP/1.1\nHost: proxy\n"
	anExec       = "GET /api/v1/namespaces/d/pods/x/exec HTTP/1.1\nHost: proxy\nConnection: Upgrade\n"
)

var podArrives = []string{"GET /api/v1/namespaces/d/pods/x "}

// hostileHTTP1 is a corpus of HTTP/1.1 requests, byte by byte. The client is always jane. A request that arrives at the
// API server must be one of those in arrived, as jane.
var hostileHTTP1 = []struct {
	name    string
	request string   // \n stands for CRLF, \x01 for a bare LF
	want    int      // the first response
	arrived []string // "METHOD URI body"
}{
	// Where the body ends. Bytes after a body are the same client's next request, and authorized as such.
	{
		"CL.TE: chunks win, and the rest is nobody's",
		aPost + "Content-Length: 6\nTransfer-Encoding: chunked\n\n0\n\nGET /smuggled HTTP/1.1\nHost: proxy\n\n", 200,
		[]string{"POST /a "},
	},
	{
		"a length: the rest is another request of jane's",
		aPost + "Content-Length: 2\n\n{}GET /next HTTP/1.1\nHost: proxy\n\n",
		200,
		[]string{"POST /a {}", "GET /next "},
	},
	{
		"TE.CL: chunks win, and what they hold is a body",
		aChunkedPost + "Content-Length: 4\n\n1f\nGET /smuggled HTTP/1.1\nHost: x\n\n0\n\n", 400, nil,
	},
	{
		"TE.CL with the right size of the chunk",
		aChunkedPost + "Content-Length: 4\n\n25\nGET /smuggled HTTP/1.1\nHost: xyz\n\n\n0\n\n", 200,
		[]string{"POST /a GET /smuggled HTTP/1.1\r\nHost: xyz\r\n\r\n"},
	},
	{"TE.TE", aChunkedPost + "Transfer-Encoding: identity\n\n0\n\n", 501, nil},
	{"TE.TE the other way around", aPost + "Transfer-Encoding: identity\nTransfer-Encoding: chunked\n\n0\n\n", 501, nil},
	{"TE with a list", aPost + "Transfer-Encoding: gzip, chunked\n\n0\n\n", 501, nil},
	{"TE of no known name", aPost + "Transfer-Encoding: xchunked\n\n0\n\n", 501, nil},
	{"TE in quotes", aPost + "Transfer-Encoding: \"chunked\"\n\n0\n\n", 501, nil},
	{"TE without a value", aPost + "Transfer-Encoding:\n\n0\n\n", 501, nil},
	{"TE with a vertical tab", aPost + "Transfer-Encoding: \x0bchunked\n\n0\n\n", 400, nil},
	{"TE with space before the colon", aPost + "Transfer-Encoding : chunked\n\n0\n\n", 400, nil},
	{
		"TE over HTTP/1.0", "POST /a HTTP/1.0\nHost: proxy\nTransfer-Encoding: chunked\nContent-Length: 3\n\n0\n\n", 200,
		[]string{"POST /a 0\r\n"},
	},
	{"two lengths", aPost + "Content-Length: 5\nContent-Length: 6\n\n123456", 400, nil},
	{"two lengths in one line", aPost + "Content-Length: 5, 6\n\n123456", 400, nil},
	{"the same length twice", aPost + "Content-Length: 5\nContent-Length: 5\n\n12345", 200, []string{"POST /a 12345"}},
	{"a length with a sign", aPost + "Content-Length: +5\n\n12345", 400, nil},
	{"a negative length", aPost + "Content-Length: -5\n\n12345", 400, nil},
	{"a hexadecimal length", aPost + "Content-Length: 0x5\n\n12345", 400, nil},
	{"a length with an exponent", aPost + "Content-Length: 1e1\n\n1234567890", 400, nil},
	{"a length of more bits than there are", aPost + "Content-Length: 18446744073709551621\n\n12345", 400, nil},
	{"a length that is none", aPost + "Content-Length: \n\n", 400, nil},
	{
		"a body on GET", aRead + "Content-Length: 27\n\nGET /smuggled HTTP/1.1\nX: y", 200,
		[]string{"GET /a GET /smuggled HTTP/1.1\r\nX: "},
	},
	{"a chunk extension", aChunkedPost + "\n2;a=\"b\"\n{}\n0\n\n", 200, []string{"POST /a {}"}},
	{"a chunk extension with a bare LF", aChunkedPost + "\n2;a\x01{}\n0\n\n", 400, nil},
	{"a chunk size with a bare LF", aChunkedPost + "\n2\x01{}\n0\n\n", 400, nil},
	{"a chunk size with a prefix", aChunkedPost + "\n0x2\n{}\n0\n\n", 400, nil},
	{"a negative chunk size", aChunkedPost + "\n-2\n{}\n0\n\n", 400, nil},
	{"a chunk size of more bits than there are", aChunkedPost + "\n10000000000000002\n{}\n0\n\n", 400, nil},
	{"a chunk longer than it says", aChunkedPost + "\n2\n{}{}\n0\n\n", 400, nil},
	{
		"trailers that name us",
		aChunkedPost + "Trailer: Impersonate-User, Authorization\n\n2\n{}\n0\nImpersonate-User: root\nAuthorization: Bearer x\n\n",
		200,
		[]string{"POST /a {}"},
	},
	{
		"trailers that name us and were not announced",
		aChunkedPost + "\n2\n{}\n0\nImpersonate-User: root\nX-Remote-User: root\n\n", 200,
		[]string{"POST /a {}"},
	},
	{
		"trailers that would move the end", aChunkedPost + "Trailer: Content-Length\n\n2\n{}\n0\nContent-Length: 1\n\n",
		400, nil,
	},

	// Where a line ends.
	{"a bare CR in a value", aRead + "X: a\rImpersonate-User: root\n\n", 400, nil},
	{"a NUL in a value", aRead + "X: a\x00b\n\n", 400, nil},
	{
		"a bare LF is the end of a line: the user who is named there needs the permission",
		aRead + "X: a\x01Impersonate-User: root\n\n", 403, nil,
	},
	{"a folded line is one value", aRead + "X: a\n Impersonate-User: root\n\n", 200, []string{"GET /a "}},
	{"a folded first line", "GET /a HTTP/1.1\n Impersonate-User: root\nHost: proxy\n\n", 400, nil},
	{"a line without a colon", aRead + "Impersonate-User\n\n", 400, nil},
	{"a header without a name", aRead + ": root\n\n", 400, nil},
	{"a name with a NUL", aRead + "Impersonate-User\x00: root\n\n", 400, nil},
	{"a name with a tab", aRead + "Impersonate-User\t: root\n\n", 400, nil},
	{"a name that is not ASCII", aRead + "Impersonate\u2010User: root\n\n", 400, nil},

	// The target and the host.
	{"absolute form goes where all goes", "GET http://127.0.0.1:1/a HTTP/1.1\nHost: proxy\n\n", 200, []string{"GET /a "}},
	{"absolute form with a user", "GET https://root:x@proxy/a HTTP/1.1\nHost: proxy\n\n", 200, []string{"GET /a "}},
	{"absolute form without a path", "GET https://proxy HTTP/1.1\nHost: proxy\n\n", 400, nil},
	{"absolute form of another scheme", "GET file:///etc/passwd HTTP/1.1\nHost: proxy\n\n", 400, nil},
	{"authority form", "GET proxy:443 HTTP/1.1\nHost: proxy\n\n", 400, nil},
	{"asterisk form", "GET * HTTP/1.1\nHost: proxy\n\n", 400, nil},
	{"opaque form", "GET mailto:root HTTP/1.1\nHost: proxy\n\n", 400, nil},
	{"a later minor version is HTTP/1.1", "GET /a HTTP/1.2\nHost: proxy\n\n", 200, []string{"GET /a "}},
	{"the preface of HTTP/2", "PRI * HTTP/2.0\n\nSM\n\n", 400, nil},
	{"no version", "GET /a\n\n", 400, nil},
	{"two spaces", "GET  /a HTTP/1.1\nHost: proxy\n\n", 400, nil},
	{"a space in the path", "GET /a b HTTP/1.1\nHost: proxy\n\n", 400, nil},
	{"a method with a colon", "GE:T /a HTTP/1.1\nHost: proxy\n\n", 400, nil},
	{"no Host", "GET /a HTTP/1.1\n\n", 400, nil},
	{"two Hosts", aRead + "Host: other\n\n", 400, nil},
	{"a Host with a space", "GET /a HTTP/1.1\nHost: proxy other\n\n", 400, nil},
	{"a Host with a path", "GET /a HTTP/1.1\nHost: proxy/smuggled?\n\n", 400, nil},
	{"a Host with a user", "GET /a HTTP/1.1\nHost: root@proxy\n\n", 400, nil},
	{"a Host that is not ASCII", "GET /a HTTP/1.1\nHost: pr\u00f6xy\n\n", 400, nil},
	{"a Host of somebody else's is only a name", "GET /a HTTP/1.1\nHost: other.example\n\n", 200, []string{"GET /a "}},
	{"Host is not what Connection makes of it", aRead + "Connection: Host\n\n", 200, []string{"GET /a "}},
	{
		"parameters in the query that two programs read in two ways",
		"GET /a?x=1;watch=true&%zz=1&y=2 HTTP/1.1\nHost: proxy\n\n", 200,
		[]string{"GET /a?y=2 "},
	},

	// Expect: 100-continue.
	{"Expect: 100-continue", aPost + "Expect: 100-continue\nContent-Length: 2\n\n{}", 100, []string{"POST /a {}"}},
	{"Expect: something else", aPost + "Expect: 200-ok\nContent-Length: 2\n\n{}", 417, nil},

	// Hop-by-hop headers.
	{
		"Connection names who the user is",
		aRead + "Connection: Authorization, Impersonate-User, Impersonate-Group, Impersonate-Uid, X-Forwarded-For\n\n", 200,
		[]string{"GET /a "},
	},
	{
		"Connection names it in a line of its own", aRead + "Connection: close\nConnection: impersonate-user\n\n", 200,
		[]string{"GET /a "},
	},
	{
		"Connection names the length", aPost + "Connection: Content-Length\nContent-Length: 2\n\n{}", 200,
		[]string{"POST /a {}"},
	},
	{
		"what concerns one hop only",
		aRead + "Keep-Alive: timeout=5\nProxy-Connection: keep-alive\nProxy-Authorization: Basic cm9vdDpyb290\nProxy-Authenticate: x\nTe: gzip\nTrailer: X\nUpgrade: h2c\nHttp2-Settings: AAA\n\n",
		200,
		[]string{"GET /a "},
	},

	// Claims of an identity: jane may not impersonate.
	{"a plain request", aPod + "\n", 200, podArrives},
	{"Impersonate-User without permission", aPod + "Impersonate-User: root\n\n", 403, nil},
	{"Impersonate-User in lower case", aPod + "impersonate-user: root\n\n", 403, nil},
	{"Impersonate-User in mixed case", aPod + "iMpErSoNaTe-uSeR: root\n\n", 403, nil},
	{"Impersonate-User twice", aPod + "Impersonate-User: jane\nImpersonate-User: root\n\n", 403, nil},
	{"an empty Impersonate-User", aPod + "Impersonate-User:\n\n", 400, nil},
	{"a group alone", aPod + "Impersonate-Group: system:masters\n\n", 400, nil},
	{"a UID alone", aPod + "Impersonate-Uid: 1\n\n", 400, nil},
	{"an extra alone", aPod + "Impersonate-Extra-Foo: 1\n\n", 400, nil},
	{"an unknown claim", aPod + "Impersonate-Something: 1\n\n", 400, nil},
	{"an unknown claim in lower case", aPod + "impersonate-something: 1\n\n", 400, nil},
	{"an empty extra prefix", aPod + "Impersonate-: 1\n\n", 400, nil},
	{
		"twins with an underscore are removed", aPod + "Impersonate_User: root\nimpersonate-extra_foo: 1\n" +
			"IMPERSONATE_GROUP: system:masters\nX_Remote_User: root\nx-remote_group: system:masters\n\n", 200, podArrives,
	},
	{
		"front proxy headers are removed", aPod + "X-Remote-User: root\nX-Remote-Group: system:masters\nX-Remote-Uid: 0\n" +
			"X-Remote-Extra-Foo: 1\n\n", 200, podArrives,
	},
	{"basic credentials are removed", aPod + "Authorization: Basic cm9vdDpyb290\n\n", 200, podArrives},
	{"a certificate comes before a token", aPod + "Authorization: Bearer of-another\n\n", 200, podArrives},
	{
		"a certificate comes before a second Authorization",
		aPod + "Authorization: Basic cm9vdDpyb290\nAuthorization: Bearer of-another\n\n", 200, podArrives,
	},
	{
		"Connection names a claim and itself", aPod + "Connection: Impersonate-User, Impersonate-Group, keep-alive\n\n",
		200, podArrives,
	},
	{
		"Connection names claims in lower case",
		aPod + "connection: impersonate-user\nconnection: impersonate-group\n\n", 200, podArrives,
	},
	{"a folded Host", "GET /a HTTP/1.1\nHost: proxy\n Impersonate-User: root\n\n", 400, nil},
	{"space before the colon of a claim", aRead + "Impersonate-User : root\n\n", 400, nil},

	// Methods, protocols and pages.
	{"CONNECT", "CONNECT proxy:443 HTTP/1.1\nHost: proxy:443\n\n", 405, nil},
	{"TRACE", "TRACE / HTTP/1.1\nHost: proxy\n\n", 405, nil},
	{"h2c", anExec + "Upgrade: h2c\nHTTP2-Settings: AAA\n\n", 400, nil},
	{"an unknown protocol", anExec + "Upgrade: tcp\n\n", 400, nil},
	{"SPDY of another version", anExec + "Upgrade: SPDY/3.0\n\n", 400, nil},
	{"two protocols", anExec + "Upgrade: websocket, h2c\n\n", 400, nil},
	{"two Upgrade headers", anExec + "Upgrade: websocket\nUpgrade: h2c\n\n", 400, nil},
	{"an upgrade with a body", anExec + "Upgrade: SPDY/3.1\nContent-Length: 2\n\nhi", 400, nil},
	{"an upgrade with a chunked body", anExec + "Upgrade: SPDY/3.1\nTransfer-Encoding: chunked\n\n0\n\n", 400, nil},
	{"a websocket with cookies", anExec + "Upgrade: websocket\nCookie: a=b\n\n", 403, nil},
	{"a websocket of a foreign page", anExec + "Upgrade: websocket\nOrigin: https://evil.example\n\n", 403, nil},
	{"a websocket of a local page", anExec + "Upgrade: websocket\nOrigin: http://localhost:8080\n\n", 403, nil},
	{"a websocket of another port", anExec + "Upgrade: websocket\nOrigin: https://proxy:8443\n\n", 403, nil},
	{"a websocket of no page", anExec + "Upgrade: websocket\nOrigin: null\n\n", 403, nil},
	{"a path of another host's", "GET api HTTP/1.1\nHost: proxy\n\n", 400, nil},
	{"the server itself as path", "OPTIONS * HTTP/1.1\nHost: proxy\n\n", 400, nil},
	{"CL.TE with a list", aPost + "Content-Length: 6\nTransfer-Encoding: chunked, identity\n\n0\n\nG", 501, nil},
}

// notForTheAPIServer are headers about one hop only, or about another hop.
var notForTheAPIServer = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate", "Te", "Trailer",
	"Upgrade", "Http2-Settings", "Transfer-Encoding", "Forwarded", "X-Real-Ip", "X-Forwarded-Host", "X-Forwarded-Proto",
}

// TestHostileHTTP1 sends the corpus through proxies in front of an API server that speaks HTTP/2, and of one that only
// speaks HTTP/1.1.
func TestHostileHTTP1(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/2.0", "HTTP/1.1"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			p := newProxyTo(t, newAPIServer(t, protocol))
			p.start(t)
			p.api.allows(noImpersonation)
			jane := p.jane(t)
			for _, test := range hostileHTTP1 {
				t.Run(test.name, func(t *testing.T) {
					before := len(p.api.requests())
					conn := p.raw(t, jane, test.request)
					res, err := http.ReadResponse(bufio.NewReader(conn), nil)
					must.Do(t, err)
					_ = res.Body.Close()
					if res.StatusCode != test.want {
						t.Errorf("want %d, got %d", test.want, res.StatusCode)
					}
					if len(test.arrived) > 0 {
						eventually(t, func() bool { return len(p.api.requests()[before:]) >= len(test.arrived) })
					}
					_ = conn.Close()
					p.waitServing(t, 0)
					checkArrived(t, test.arrived, p.api.requests()[before:])
				})
			}
		})
	}
}

// TestNothingIsReadAfterADoubtfulEnd sends requests whose end is ambiguous, as in request smuggling, followed by more
// bytes. The proxy closes the connection after the first response, so the further bytes are never read as a request.
func TestNothingIsReadAfterADoubtfulEnd(t *testing.T) {
	t.Parallel()
	const more = "GET /smuggled HTTP/1.1\nHost: proxy\n\n"
	const clte = "Content-Length: 6\nTransfer-Encoding: chunked\n\n0\n\n"
	for _, test := range []struct {
		name, request string
		early         bool // the API server sends something before its response
	}{
		{name: "CL.TE", request: aPost + clte},
		{name: "TE.CL", request: aChunkedPost + "Content-Length: 50\n\n2\n{}\n0\n\n"},
		{name: "CL.TE before an informational response", request: aPost + clte, early: true},
		{name: "CL.TE that is refused", request: "POST //a HTTP/1.1\nHost: proxy\n" + clte},
		{name: "CL.TE of a method that is refused", request: "TRACE /a HTTP/1.1\nHost: proxy\n" + clte},
		{name: "CL.TE that asks for more", request: aPost + "Connection: keep-alive\n" + clte},
		{name: "TE over HTTP/1.0 that asks for more", request: "POST /a HTTP/1.0\nHost: proxy\nConnection: keep-alive\n" +
			"Transfer-Encoding: chunked\nContent-Length: 5\n\n0\n\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			if test.early {
				p.api.serves(func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(http.StatusEarlyHints)
					_, _ = io.WriteString(w, "at last")
				})
			}
			responses, err := io.ReadAll(p.raw(t, p.jane(t), test.request+more))
			if err != nil {
				t.Fatalf("want the end of the connection after %q, got %v", responses, err)
			}
			if n := strings.Count(string(responses), "\r\nDate: "); n != 1 {
				t.Errorf("want one last response, got %d in %q", n, responses)
			}
			for _, one := range p.api.requests() {
				if one.URI == "/smuggled" {
					t.Error("want nothing of what follows at the API server")
				}
			}
		})
	}
}

// checkArrived expects exactly these requests at the API server, each as jane and without notForTheAPIServer. A request
// whose body broke off does not count.
func checkArrived(t *testing.T, want []string, all []*recorded) {
	t.Helper()
	var arrived []string
	for _, one := range all {
		checkIdentity(t, one, carried("jane"))
		for _, name := range notForTheAPIServer {
			if values, ok := one.Header[name]; ok {
				t.Errorf("%s %s has %s: %s", one.Method, one.URI, name, values)
			}
		}
		if got := one.Header.Get("X-Forwarded-For"); got != "127.0.0.1" {
			t.Errorf("want the client's address, got %q", got)
		}
		if len(one.Trailer) > 0 {
			t.Errorf("want no trailers, got %v", one.Trailer)
		}
		if !one.Broken {
			arrived = append(arrived, fmt.Sprintf("%s %s %s", one.Method, one.URI, one.Body))
		}
	}
	same.Values(t, "requests at the API server", want, arrived)
}
