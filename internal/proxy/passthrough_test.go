package proxy

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

const exactRefusal = `"message":"Internal error occurred: unimplemented functionality - unable to act as current user","reason":"InternalError",` +
	`"details":{"causes":[{"message":"unimplemented functionality - unable to act as current user"}]},"code":500}`

// TestUIDs sends users with and without a UID to API servers that can and cannot impersonate one.
func TestUIDs(t *testing.T) {
	t.Parallel()
	account := authenticationv1.UserInfo{
		Username: "system:serviceaccount:ns:sa", UID: "u-1", Groups: []string{"system:serviceaccounts"},
		Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}},
	}
	const old, current = "v1.21.14-eks-18ef993", "v1.22.0"
	asAccount := map[string][]string{
		"Authorization":       {"Bearer " + upstreamToken},
		"Impersonate-User":    {"system:serviceaccount:ns:sa"},
		"Impersonate-Uid":     {"u-1"},
		"Impersonate-Group":   {"system:serviceaccounts", "system:authenticated"},
		"Impersonate-Extra-K": {"v"},
	}
	passed := map[string][]string{"Authorization": {"Bearer account"}}
	websocketToken := "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Protocol: v5.channel.k8s.io, " +
		"base64url.bearer.authorization.k8s.io." +
		base64.RawURLEncoding.EncodeToString(
			[]byte("account"),
		) + "\n"
	for _, test := range []struct {
		name, version, header string
		certificate           bool // of jane, who has no UID
		want                  map[string][]string
		refused               int
	}{
		{
			name: "impersonates the UID of a token's user", version: current, header: "Authorization: Bearer account\n",
			want: asAccount,
		},
		{name: "impersonates the UID of a websocket token's user", version: current, header: websocketToken, want: asAccount},
		{
			name: "impersonates a nested UID", version: current, certificate: true, header: "Impersonate-User: " +
				"joe\nImpersonate-Uid: u-2\n",
			want: map[string][]string{
				"Authorization": {"Bearer " + upstreamToken}, "Impersonate-User": {"joe"}, "Impersonate-Uid": {"u-2"}, "Impersonate-Group": {"system:authenticated"},
			},
		},
		{
			name: "passes the token through to an old one", version: old, header: "Authorization: Bearer account\n",
			want: passed,
		},
		{name: "passes the token of a websocket through to an old one", version: old, header: websocketToken, want: passed},
		{name: "passes no stranger's token beside a certificate", version: old, certificate: true, header: "Authorization: " +
			"Bearer account\n", want: map[string][]string{
			"Authorization": {"Bearer " + upstreamToken}, "Impersonate-User": {"jane"}, "Impersonate-Group": {"system:authenticated"},
		}},
		{name: "impersonates a user without a UID at an old one", version: old, header: "Authorization: Bearer joe\n", want: map[string][]string{
			"Authorization": {"Bearer " + upstreamToken}, "Impersonate-User": {"joe"}, "Impersonate-Group": {"system:authenticated"},
		}},
		{name: "refuses a nested UID at an old one", version: old, certificate: true, header: "Impersonate-User: " +
			"joe\nImpersonate-Uid: u-2\n", refused: 500},
		{name: "refuses a nested UID at an old one, also of a token's user", version: old, header: "Authorization: Bearer " +
			"account\nImpersonate-User: joe\nImpersonate-Uid: u-2\n", refused: 500},
		{name: "refuses the headers of a token's user who acts as himself", version: old, header: "Authorization: Bearer " +
			"account\nImpersonate-User: system:serviceaccount:ns:sa\nImpersonate-Uid: u-1\n", refused: 500},
		{
			name: "guesses nothing when the version is not known", version: "", header: "Authorization: Bearer account\n",
			refused: 503,
		},
		{name: "guesses nothing when the version cannot be read", version: "latest", header: "Authorization: Bearer " +
			"account\n", refused: 503},
		{name: "needs no version for users without a UID", version: "", header: "Authorization: Bearer joe\n", want: map[string][]string{
			"Authorization": {"Bearer " + upstreamToken}, "Impersonate-User": {"joe"}, "Impersonate-Group": {"system:authenticated"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			p.api.version = test.version
			p.api.tokens["account"], p.api.tokens["joe"] = account, authenticationv1.UserInfo{Username: "joe"}
			p.start(t)
			certificate := clientCertificate(t, p.signerCA, "jane")
			if !test.certificate {
				certificate = nil
			}
			code, body, header := p.exchange(
				t,
				certificate,
				"GET /api/v1/namespaces/d/pods/x/exec HTTP/1.1\nHost: proxy\n"+test.header+"\n",
			)
			arrived := p.api.requests()
			if test.refused != 0 {
				if code != test.refused || len(arrived) != 0 {
					t.Fatalf("want %d and nothing sent on, got %d and %d requests", test.refused, code, len(arrived))
				}
				if code == 500 &&
					(!strings.Contains(body, exactRefusal) || !strings.Contains(header.Get("Warning"), "too old to impersonate")) {
					t.Errorf("want the text that clients know, and the reason in a warning, got %s and %v", body, header)
				}
				return
			}
			if code != 200 || len(arrived) != 1 {
				t.Fatalf("want 200 and one request, got %d and %d: %s", code, len(arrived), body)
			}
			got := withoutCredentialID(identityOf(arrived[0]))
			delete(got, "Impersonate-Extra-Original-User-Info.impersonation-Proxy.concierge.pinniped.dev")
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("identity (-want +got):\n%s", diff)
			}
			if strings.Contains(arrived[0].Header.Get("Sec-Websocket-Protocol"), "bearer") {
				t.Errorf("want no token among the subprotocols, got %v", arrived[0].Header)
			}
		})
	}
}

// TestFrontProxyUIDAtAnOldAPIServer has a UID that no token vouches for.
func TestFrontProxyUIDAtAnOldAPIServer(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	frontCA := newCA(t, "front proxy CA")
	p.api.version = "v1.21.0"
	p.api.tokens["account"] = authenticationv1.UserInfo{Username: "jane", UID: "u-1"}
	p.api.configMap["requestheader-client-ca-file"] = string(frontCA.CertPEM())
	p.api.configMap["requestheader-username-headers"] = `["X-Remote-User"]`
	p.api.configMap["requestheader-uid-headers"] = `["X-Remote-Uid"]`
	p.start(t)
	got := p.get(t, p.client(t, clientCertificate(t, frontCA, "front-proxy")), "/api/v1/nodes", http.Header{
		"X-Remote-User": {"jane"}, "X-Remote-Uid": {"u-1"}, "Authorization": {"Bearer account"},
	})
	if got.Code != 500 || !strings.Contains(got.Body, exactRefusal) || len(p.api.requests()) != 0 {
		t.Errorf("want a refusal even beside a token of the same user, got %d: %s", got.Code, got.Body)
	}
}

// TestPassedTokenMustStillBeTheUser changes whom a token belongs to between authentication and sending.
func TestPassedTokenMustStillBeTheUser(t *testing.T) {
	t.Parallel()
	who := authenticationv1.UserInfo{
		Username: "jane",
		UID:      "u-1",
		Groups:   []string{"a"},
		Extra:    map[string]authenticationv1.ExtraValue{"k": {"v"}},
	}
	for name, change := range map[string]func(*authenticationv1.UserInfo){
		"another name":  func(u *authenticationv1.UserInfo) { u.Username = "joe" },
		"another UID":   func(u *authenticationv1.UserInfo) { u.UID = "u-2" },
		"another group": func(u *authenticationv1.UserInfo) { u.Groups = []string{"a", "b"} },
		"another extra": func(u *authenticationv1.UserInfo) { u.Extra = map[string]authenticationv1.ExtraValue{"k": {"w"}} },
		"no extra":      func(u *authenticationv1.UserInfo) { u.Extra = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := &steppedClock{}
			p := newProxy(t)
			p.api.version = "v1.21.0"
			p.api.tokens["t"] = who
			p.start(t, func(p *proxy, o *Options) {
				o.Clock = clock
				allow := p.api.allow
				p.api.allow = func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
					if spec.User == "jane" { // after authentication, before sending: the answer about the token is forgotten
						clock.Step(time.Minute)
						p.api.set(func() {
							changed := who
							change(&changed)
							p.api.tokens["t"] = changed
						})
					}
					return allow(spec)
				}
			})
			got := p.get(t, p.client(t, nil), "/api/v1/nodes", http.Header{"Authorization": {"Bearer t"}})
			if got.Code != 500 || !strings.Contains(got.Body, exactRefusal) || len(p.api.requests()) != 0 {
				t.Errorf("want a refusal, got %d: %s", got.Code, got.Body)
			}
		})
	}
}

// TestAPIServerRefusesAPassedToken checks that its 401 is the client's, and no judgement of our own credential.
func TestAPIServerRefusesAPassedToken(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	p.api.version = "v1.21.0"
	p.api.tokens["t"] = authenticationv1.UserInfo{Username: "jane", UID: "u-1"}
	p.api.serve = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }
	p.start(t)
	if got := p.get(t, p.client(t, nil), "/api/v1/nodes", http.Header{"Authorization": {"Bearer t"}}); got.Code != 401 {
		t.Errorf("want 401, got %d: %s", got.Code, got.Body)
	}
	if len(p.token.rejected) != 0 {
		t.Error("want our own credential kept")
	}
}

func TestAPIServerVersionIsFollowed(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	p.api.version = "v1.21.0"
	p.api.tokens["t"] = authenticationv1.UserInfo{Username: "jane", UID: "u-1"}
	p.start(t, func(_ *proxy, o *Options) { o.ProbeInterval = 10 * time.Millisecond })
	client := p.client(t, nil)
	last := func() http.Header {
		if got := p.get(t, client, "/api/v1/nodes", http.Header{"Authorization": {"Bearer t"}}); got.Code != 200 {
			t.Fatalf("want 200, got %d: %s", got.Code, got.Body)
		}
		all := p.api.requests()
		return all[len(all)-1].Header
	}
	if got := last().Get("Authorization"); got != "Bearer t" {
		t.Fatalf("want the token passed through, got %q", got)
	}
	p.api.set(func() { p.api.version = "v1.22.1" }) // upgraded
	eventually(t, func() bool { return last().Get("Impersonate-Uid") == "u-1" })
	var before int
	p.api.set(func() { p.api.version, before = "", p.api.versions }) // away
	eventually(t, func() bool { p.api.mu.Lock(); defer p.api.mu.Unlock(); return p.api.versions > before+3 })
	if got := last().Get("Impersonate-Uid"); got != "u-1" {
		t.Errorf("want the last answer kept, got UID %q", got)
	}
}
