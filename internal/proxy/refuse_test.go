package proxy

import (
	"bufio"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// TestNothingSpoofedArrives sends every kind of identity claim and checks what the API server receives.
func TestNothingSpoofedArrives(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() { p.api.allow = noImpersonation })
	jane := clientCertificate(t, p.signerCA, "jane")
	want := map[string][]string{
		"Authorization":     {"Bearer " + upstreamToken},
		"Impersonate-User":  {"jane"},
		"Impersonate-Group": {"system:authenticated"},
	}
	for _, test := range []struct {
		name    string
		header  string // lines as sent over HTTP/1.1
		refused int    // 0: must arrive as jane
	}{
		{name: "passes a plain request"},
		{name: "refuses Impersonate-User without permission", header: "Impersonate-User: root\n", refused: 403},
		{name: "refuses it in lower case", header: "impersonate-user: root\n", refused: 403},
		{name: "refuses it in mixed case", header: "iMpErSoNaTe-uSeR: root\n", refused: 403},
		{name: "refuses it twice", header: "Impersonate-User: jane\nImpersonate-User: root\n", refused: 403},
		{name: "refuses an empty one", header: "Impersonate-User:\n", refused: 400},
		{name: "refuses a group alone", header: "Impersonate-Group: system:masters\n", refused: 400},
		{name: "refuses a UID alone", header: "Impersonate-Uid: 1\n", refused: 400},
		{name: "refuses an extra alone", header: "Impersonate-Extra-Foo: 1\n", refused: 400},
		{name: "refuses an unknown one", header: "Impersonate-Something: 1\n", refused: 400},
		{name: "refuses an unknown one in lower case", header: "impersonate-something: 1\n", refused: 400},
		{name: "refuses an empty extra prefix", header: "Impersonate-: 1\n", refused: 400},
		{name: "removes twins with an underscore", header: "Impersonate_User: root\nimpersonate-extra_foo: " +
			"1\nIMPERSONATE_GROUP: system:masters\nX_Remote_User: root\nx-remote_group: system:masters\n"},
		{name: "removes front proxy headers", header: "X-Remote-User: root\nX-Remote-Group: system:masters\nX-Remote-Uid: " +
			"0\nX-Remote-Extra-Foo: 1\n"},
		{name: "keeps identity when Connection names it", header: "Connection: Impersonate-User, Impersonate-Group, " +
			"Authorization, keep-alive\n"},
		{name: "keeps identity when Connection names it in lower case", header: "connection: impersonate-user\nconnection: " +
			"impersonate-group\n"},
		{name: "removes basic credentials", header: "Authorization: Basic cm9vdDpyb290\n"},
		{name: "prefers the certificate to a token", header: "Authorization: Bearer of-a-unauthenticated client\n"},
		{name: "prefers the certificate to a second Authorization", header: "Authorization: Basic " +
			"cm9vdDpyb290\nAuthorization: Bearer of-a-unauthenticated client\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := len(p.api.requests())
			conn := p.raw(t, jane, "GET /api/v1/namespaces/default/pods/x HTTP/1.1\nHost: proxy\n"+test.header+"\n")
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			arrived := p.api.requests()[before:]
			if test.refused != 0 {
				if res.StatusCode != test.refused || len(arrived) != 0 {
					t.Fatalf("want %d and nothing sent on, got %d and %d requests", test.refused, res.StatusCode, len(arrived))
				}
				return
			}
			if res.StatusCode != http.StatusOK || len(arrived) != 1 {
				t.Fatalf("want 200 and one request, got %d and %d", res.StatusCode, len(arrived))
			}
			if diff := cmp.Diff(want, withoutCredentialID(identityOf(arrived[0]))); diff != "" {
				t.Errorf("identity at the API server (-want +got):\n%s", diff)
			}
		})
	}
}

// withoutCredentialID removes the extra that every certificate has.
func withoutCredentialID(identity map[string][]string) map[string][]string {
	delete(identity, "Impersonate-Extra-Authentication.kubernetes.io%2fcredential-Id")
	return identity
}

func TestForeignHopsAreRemoved(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	got := p.get(t, p.as(t, "jane"), "/api/v1/nodes", http.Header{
		"X-Forwarded-For":   {"6.6.6.6"},
		"X-Forwarded-Host":  {"evil"},
		"X-Forwarded-Proto": {"http"},
		"X-Forwarded-Uri":   {"/evil"},
		"X_Forwarded_For":   {"6.6.6.6"},
		"X-Real-Ip":         {"6.6.6.6"},
		"Forwarded":         {"for=6.6.6.6"},
		"Http2-Settings":    {"AAA"},
		"User-Agent":        {"mine"},
		"Accept-Language":   {"fr"},
	})
	if got.Code != http.StatusOK {
		t.Fatalf("want 200, got %d: %s", got.Code, got.Body)
	}
	arrived := p.api.requests()[0]
	for name, values := range arrived.Header {
		for _, value := range values {
			if strings.Contains(value, "6.6.6.6") || strings.Contains(value, "evil") || value == "AAA" {
				t.Errorf("%s: %s arrived at the API server", name, value)
			}
		}
	}
	for name, want := range map[string]string{
		"X-Forwarded-For": "127.0.0.1", "User-Agent": "mine", "Accept-Language": "fr",
	} {
		if got := arrived.Header.Get(name); got != want {
			t.Errorf("want %s %q, got %q", name, want, got)
		}
	}
	if arrived.Host != p.address {
		t.Errorf("want the client's Host %q, got %q", p.address, arrived.Host)
	}
}

func TestTrailersStayHere(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	conn := p.raw(
		t,
		clientCertificate(t, p.signerCA, "jane"),
		"POST /api/v1/namespaces/default/pods HTTP/1.1\nHost: proxy\nTransfer-Encoding: chunked\nTrailer: "+
			"Impersonate-User\n\n"+
			"2\n{}\n0\nImpersonate-User: root\n\n",
	)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	arrived := p.api.requests()
	if res.StatusCode != http.StatusOK || len(arrived) != 1 {
		t.Fatalf("want 200 and one request, got %d and %d", res.StatusCode, len(arrived))
	}
	if arrived[0].Body != "{}" || len(arrived[0].Trailer) != 0 || arrived[0].Header.Get("Impersonate-User") != "jane" {
		t.Errorf("want the body and no trailer, got %+v", arrived[0])
	}
}

func TestHostileRequestsAreRefused(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	jane := clientCertificate(t, p.signerCA, "jane")
	const upgrade = "GET /api/v1/namespaces/default/pods/x/exec HTTP/1.1\nHost: proxy\nConnection: Upgrade\n"
	for _, test := range []struct {
		name, request string
		want          int
	}{
		{"refuses CONNECT", "CONNECT proxy:443 HTTP/1.1\nHost: proxy:443\n\n", 405},
		{"refuses TRACE", "TRACE / HTTP/1.1\nHost: proxy\n\n", 405},
		{"refuses h2c", upgrade + "Upgrade: h2c\nHTTP2-Settings: AAA\n\n", 400},
		{"refuses an unknown protocol", upgrade + "Upgrade: tcp\n\n", 400},
		{"refuses SPDY of another version", upgrade + "Upgrade: SPDY/3.0\n\n", 400},
		{"refuses two protocols", upgrade + "Upgrade: websocket, h2c\n\n", 400},
		{"refuses two Upgrade headers", upgrade + "Upgrade: websocket\nUpgrade: h2c\n\n", 400},
		{"refuses an upgrade with a body", upgrade + "Upgrade: SPDY/3.1\nContent-Length: 2\n\nhi", 400},
		{"refuses an upgrade with a chunked body", upgrade + "Upgrade: SPDY/3.1\nTransfer-Encoding: chunked\n\n0\n\n", 400},
		{"refuses a websocket with cookies", upgrade + "Upgrade: websocket\nCookie: a=b\n\n", 403},
		{"refuses a websocket of a foreign page", upgrade + "Upgrade: websocket\nOrigin: https://evil.example\n\n", 403},
		{"refuses a websocket of a local page", upgrade + "Upgrade: websocket\nOrigin: http://localhost:8080\n\n", 403},
		{"refuses a websocket of another port", upgrade + "Upgrade: websocket\nOrigin: https://proxy:8443\n\n", 403},
		{"refuses a websocket of no page", upgrade + "Upgrade: websocket\nOrigin: null\n\n", 403},
		{"refuses CL.TE", "POST /api HTTP/1.1\nHost: proxy\nContent-Length: 6\nTransfer-Encoding: chunked, " +
			"identity\n\n0\n\nG", 501},
		{"refuses two lengths", "POST /api HTTP/1.1\nHost: proxy\nContent-Length: 6\nContent-Length: 5\n\n123456", 400},
		{"refuses space before the colon", "GET /api HTTP/1.1\nHost: proxy\nImpersonate-User : root\n\n", 400},
		{"refuses a folded line", "GET /api HTTP/1.1\nHost: proxy\n Impersonate-User: root\n\n", 400},
		{"refuses a path of another host's", "GET api HTTP/1.1\nHost: proxy\n\n", 400},
		{"refuses the server itself as path", "OPTIONS * HTTP/1.1\nHost: proxy\n\n", 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := len(p.api.requests())
			res, err := http.ReadResponse(bufio.NewReader(p.raw(t, jane, test.request)), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			if res.StatusCode != test.want {
				text, _ := io.ReadAll(res.Body)
				t.Errorf("want %d, got %d: %s", test.want, res.StatusCode, text)
			}
			if got := p.api.requests()[before:]; len(got) != 0 {
				t.Errorf("want nothing sent on, got %s %s", got[0].Method, got[0].URI)
			}
		})
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	jane := clientCertificate(t, p.signerCA, "jane")
	for path, want := range map[string]int{
		"/":                                   200,
		"/api/":                               200,
		"/api/v1/namespaces/default/pods?a=b": 200,
		"/.well-known/openid-configuration":   200,
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Aadmin": 200,
		"/api/v1/namespaces/d/services/https:x:1/proxy/a//b%2fc":         200,
		"/api/v1/nodes/n/proxy//stats":                                   200,
		"//api/v1/pods":                                                  400,
		"/api//v1/pods":                                                  400,
		"/api/v1/namespaces/default/pods/../secrets":                     400,
		"/api/v1/./pods":                                                 400,
		"/api/v1/pods/..":                                                400,
		"/api/v1/namespaces/default/pods/%2e%2e/secrets":                 400,
		"/api/v1/namespaces/default/pods%2fx":                            400,
		"/api/v1/namespaces/default/pods/a%5cb":                          400,
		"/api/v1/namespaces/default/pods/a%00b":                          400,
		"/api/v1/namespaces/default/pods/a%0ab":                          400,
		"/api/v1/namespaces/proxy/pods%2fx/log":                          400,
		"/api/v1/namespaces/d/services/x%2fproxy/y":                      400,
		"/api/v1/namespaces/d/services/x/proxy/../../secrets":            400,
		"/api/v1/namespaces/d/services/x/proxy/%2e%2e/secrets":           400,
		"/api/v1/namespaces/d/services/x/proxy/a%2f..%2fb":               400,
		"/apis/g/v1/namespaces/d/services/x/proxy//y":                    400,
		"/api/v1/watch":                                                  400,
		"/api/v1/namespaces/default/pods;a=b/x":                          200, // a parameter is just a name
		"/api/v1/namespaces/default/pods/%252e%252e":                     200, // decoded once on each side
		"/api/v1/namespaces/default/pods/%2E%2E/secrets":                 400,
		"/api/v1/namespaces/default/pods/.%2e/secrets":                   400,
		"/api/v1/namespaces/default/pods/%2e":                            400,
		"/api/v1/namespaces/default/pods/%5c..%5csecrets":                400,
		"/api/v1/namespaces/default/pods/%u002e":                         400,
		"/api/v1/namespaces/default/pods/%":                              400,
		"/api/v1/namespaces/default/pods/a%7f":                           400,
		"///":                                                            400,
		"/..":                                                            400,
		"/" + strings.Repeat("a", 64<<10):                                200,
	} {
		t.Run(request.Shown(path), func(t *testing.T) {
			before := len(p.api.requests())
			conn := p.raw(t, jane, "GET "+path+" HTTP/1.1\nHost: proxy\n\n")
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			if res.StatusCode != want {
				t.Fatalf("want %d, got %d", want, res.StatusCode)
			}
			arrived := p.api.requests()[before:]
			if want != 200 {
				if len(arrived) != 0 {
					t.Errorf("want nothing sent on, got %s", arrived[0].URI)
				}
				return
			}
			if len(arrived) != 1 || arrived[0].URI != path {
				t.Errorf("want the very path %s at the API server, got %+v", path, arrived)
			}
		})
	}
}

func TestUncarriableIdentitiesAreRefused(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	for name, who := range map[string]authenticationv1.UserInfo{
		"line end in name":  {Username: "jane\r\nImpersonate-Group: system:masters"},
		"NUL in group":      {Username: "jane", Groups: []string{"a\x00"}},
		"line end in extra": {Username: "jane", Extra: map[string]authenticationv1.ExtraValue{"k": {"a\nb"}}},
		"reserved extra": {
			Username: "jane", Extra: map[string]authenticationv1.ExtraValue{relay.OriginalUserExtraKey: {"{}"}},
		},
		"space around a name": {Username: " jane"},
	} {
		t.Run(name, func(t *testing.T) {
			p.api.set(func() { p.api.tokens[url.PathEscape(name)] = who })
			got := p.get(t, p.client(t, nil), "/api/v1/nodes", http.Header{"Authorization": {"Bearer " + url.PathEscape(name)}})
			if got.Code != http.StatusInternalServerError || !strings.Contains(got.Body, "unable to act as current user") {
				t.Errorf("want a refusal, got %d: %s", got.Code, got.Body)
			}
			if n := len(p.api.requests()); n != 0 {
				t.Errorf("want nothing sent on, got %d requests", n)
			}
		})
	}
}

func TestReservedKeyIsNamedInAWarning(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() {
		p.api.tokens["t"] = authenticationv1.UserInfo{
			Username: "jane",
			Extra:    map[string]authenticationv1.ExtraValue{relay.OriginalUserExtraKey: {"{}"}},
		}
	})
	got := p.get(t, p.client(t, nil), "/api/v1/nodes", http.Header{"Authorization": {"Bearer t"}})
	const want = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",` +
		`"message":"Internal error occurred: unimplemented functionality - unable to act as current user","reason":"InternalError",` +
		`"details":{"causes":[{"message":"unimplemented functionality - unable to act as current user"}]},"code":500}` + "\n"
	if diff := cmp.Diff(want, got.Body); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	if warning := got.Header.Get("Warning"); !strings.Contains(warning, relay.OriginalUserExtraKey) {
		t.Errorf("want a warning that names the key, got %q", warning)
	}
}

func FuzzCheckPath(f *testing.F) {
	for _, seed := range []string{"/api/v1/pods", "/a/../b", "/%2e%2e/", "//", "/a%2fb", "/api/v1/nodes/n/proxy/x//y"} {
		f.Add(seed, 0)
		f.Add(seed, 5)
	}
	f.Fuzz(func(t *testing.T, path string, kubernetes int) {
		if checkPath(path, kubernetes) != nil {
			return
		}
		for _, bad := range []string{"/../", "/./", "/%2e%2e/", "/%2E%2E/", "/.%2e/"} {
			if strings.Contains(path+"/", bad) {
				t.Errorf("path %q was let through", path)
			}
		}
		if kubernetes == 0 && (strings.Contains(path, "//") || strings.Contains(strings.ToLower(path), "%2f")) {
			t.Errorf("path %q was let through", path)
		}
	})
}
