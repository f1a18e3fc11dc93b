package proxy

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

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

func TestPaths(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	jane := p.jane(t)
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
			got := p.exchange(t, jane, "GET "+path+" HTTP/1.1\nHost: proxy\n\n")
			arrived := p.api.requests()[before:]
			switch {
			case got.Code != want:
				t.Errorf("want %d, got %d", want, got.Code)
			case want == 200 && (len(arrived) != 1 || arrived[0].URI != path):
				t.Errorf("want the very path %s at the API server, got %+v", path, arrived)
			case want != 200 && len(arrived) != 0:
				t.Errorf("want nothing sent on, got %s", arrived[0].URI)
			}
		})
	}
}

const cannotActBody = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",` +
	`"message":"Internal error occurred: unimplemented functionality - unable to act as current user","reason":"InternalError",` +
	`"details":{"causes":[{"message":"unimplemented functionality - unable to act as current user"}]},"code":500}` + "\n"

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
			if name == "reserved extra" && (got.Body != cannotActBody ||
				!strings.Contains(got.Header.Get("Warning"), relay.OriginalUserExtraKey)) {
				t.Errorf("want a warning that names the key, got %v: %s", got.Header, got.Body)
			}
			p.api.checkNothingSent(t)
		})
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
