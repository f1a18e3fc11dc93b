package oidclogin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
	"github.com/pinniped-toolkit/pinniped/test/oidctest"
)

// TestRefused checks Renew after a cluster refused the session's token, as after a rotation of the issuer's keys.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, audience := range []string{"", "cluster"} {
		t.Run("audience "+audience, func(t *testing.T) {
			t.Parallel()
			s := setUp(t)
			s.login.RequestAudience = audience
			s.must(t, s.login)
			other := s.another(s.login.Sessions.Path)
			other.RequestAudience = audience
			for _, login := range []*oidclogin.Login{s.login, other} {
				if token := s.must(t, login); !token.Cached {
					t.Fatal("want the token of the session")
				}
			}
			if err := s.RotateKeys(); err != nil {
				t.Fatal(err)
			}
			// Two processes call Renew: the first refreshes the session, the second finds the new one.
			for _, login := range []*oidclogin.Login{s.login, other} {
				token, err := login.Renew(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if want := oidctest.ClientID; !s.Accepts(token.Raw, want) && !s.Accepts(token.Raw, "cluster") {
					t.Error("want a token signed with the new key")
				}
			}
			if s.Count(codes) != 1 || s.Count(refreshes) != 1 {
				t.Errorf("want one refresh: %v", s.Requests())
			}
		})
	}
}

// TestExchangedForAnotherClient checks that an exchanged token that was issued to another client is refused.
func TestExchangedForAnotherClient(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	s.login.RequestAudience = "cluster"
	s.Fault = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.PostForm.Get("audience") != "" {
			s.AuthorizedParty = "dashboard"
		}
		return false
	}
	const want = `it was issued to another client, "dashboard"`
	if _, err := s.login.Token(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
}

// TestListenPortInUse checks a login while another program has the listen port.
func TestListenPortInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // the test is over
	s := setUp(t)
	port := taken.Addr().(*net.TCPAddr).Port
	s.login.ListenPort = uint16(port)
	s.Metadata = map[string]any{"device_authorization_endpoint": ""}
	want := fmt.Sprintf("another program uses port %d (--listen-port)", port)
	if _, err := s.login.Token(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
}

// withKeys makes the issuer publish the keys that change returns for its signing key.
func (s *situation) withKeys(t *testing.T, change func(signing map[string]any) []any) {
	t.Helper()
	recorder := httptest.NewRecorder()
	s.ServeKeys(recorder)
	var set struct {
		Keys []map[string]any `json:"keys"`
	}
	if err := json.Unmarshal(recorder.Body.Bytes(), &set); err != nil {
		t.Fatal(err)
	}
	keys := change(set.Keys[0])
	s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/jwks" {
			_ = json.NewEncoder(w).Encode(map[string]any{"keys": keys})
		}
		return r.URL.Path == "/jwks"
	}
}

// TestOddKeys checks that a key that Go cannot read, next to the signing key, does no harm.
func TestOddKeys(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	var notes strings.Builder
	s.login.Debugf = func(format string, args ...any) { fmt.Fprintf(&notes, format+"\n", args...) }
	s.withKeys(t, func(signing map[string]any) []any {
		signing["x5c"] = []any{"no certificate"}
		return []any{map[string]any{"kty": "EC", "crv": "P-521", "kid": "es512", "x": "AQ", "y": "AQ"}, signing}
	})
	s.must(t, s.login)
	if !strings.Contains(notes.String(), `not using key "es512": its point (x, y) is not on the curve P-521`) {
		t.Errorf("got %s", notes.String())
	}
}

// TestFaults checks the errors for misbehaving issuers.
func TestFaults(t *testing.T) {
	t.Parallel()
	thief := make(chan string, 10)
	redirect := func(path string) func(*testing.T, *situation) {
		return func(t *testing.T, s *situation) {
			t.Helper()
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/thief" {
					thief <- path + " " + r.PostForm.Encode() + r.Header.Get("Pinniped-Password")
				}
				if r.URL.Path != path {
					return false
				}
				http.Redirect(w, r, s.URL+"/thief", http.StatusTemporaryRedirect)
				return true
			}
		}
	}
	at := func(path string, answer func(http.ResponseWriter, *http.Request)) func(*testing.T, *situation) {
		return func(t *testing.T, s *situation) {
			t.Helper()
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == path {
					answer(w, r)
					return true
				}
				return false
			}
		}
	}
	// device logs in with a device code, and has the issuer return code and body for the device request.
	device := func(code int, body string) func(*testing.T, *situation) {
		return func(t *testing.T, s *situation) {
			t.Helper()
			s.login.Flow = oidclogin.DeviceCode
			at("/device", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(code)
				_, _ = w.Write([]byte(body))
			})(t, s)
		}
	}
	metadata := func(name string, value any) func(*testing.T, *situation) {
		return func(t *testing.T, s *situation) { t.Helper(); s.Metadata = map[string]any{name: value} }
	}
	for _, test := range []struct {
		name       string
		prepare    func(*testing.T, *situation)
		says, hint string
	}{
		{name: "wrong nonce", prepare: func(_ *testing.T, s *situation) { s.Nonce = "another login's" }, says: "its nonce " +
			"does not match this login", hint: "run the command again"},
		{
			name: "a token for another client", prepare: func(_ *testing.T, s *situation) { s.AuthorizedParty = "dashboard" },
			says: `it was issued to another client, "dashboard"`, hint: "contact its administrator",
		},
		{name: "slow", prepare: func(t *testing.T, s *situation) {
			t.Helper()
			s.login.RequestTimeout = 50 * time.Millisecond
			at("/token", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })(t, s)
		}, says: "no response within 50ms", hint: "is reachable"},
		{name: "keys that do not fit", prepare: func(t *testing.T, s *situation) {
			t.Helper()
			s.Fault = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/jwks" {
					if err := s.RotateKeys(); err != nil {
						t.Error(err)
					}
				}
				return false
			}
		}, says: "verifying the ID token: failed to verify signature", hint: "contact its administrator"},
		{name: "a signing key that cannot be used", prepare: func(t *testing.T, s *situation) {
			t.Helper()
			s.withKeys(t, func(signing map[string]any) []any { signing["use"] = "enc"; return []any{signing} })
		}, says: "none of the issuer's keys can be used: key ", hint: "another key: RSA"},
		{name: "a signing key that cannot be used, next to another", prepare: func(t *testing.T, s *situation) {
			t.Helper()
			s.withKeys(t, func(signing map[string]any) []any {
				other := maps.Clone(signing)
				other["kid"] = "other"
				signing["n"] = "AQ"
				return []any{signing, other}
			})
		}, says: "the token is signed with a key that cannot be used: key ", hint: "another key: RSA"},
		{name: "no key set", prepare: at("/jwks", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"secret of": "the gateway"}`))
		}), says: "it is not a key set", hint: "what is at https://"},
		{name: "keys that cannot be fetched", prepare: at("/jwks", func(_ http.ResponseWriter, _ *http.Request) {
			panic(http.ErrAbortHandler)
		}), says: "fetching the keys of issuer", hint: "is reachable from here"},
		{name: "a clock that is far behind", prepare: func(_ *testing.T, s *situation) {
			s.Now = func() time.Time { return time.Now().Add(-2 * time.Hour) }
		}, says: "it expired", hint: "this computer's clock is 2h0m"},
		{name: "an endless answer", prepare: at("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"x":"`))
			for range 64 {
				if _, err := w.Write([]byte(strings.Repeat("x", 1<<16))); err != nil {
					return
				}
			}
		}), says: "fetching the discovery document"},
		{
			name: "another name", prepare: metadata("issuer", "https://other.example.com\x1b[2J"),
			says: `its discovery document names a different issuer, "https://other.example.com`, hint: "--oidc-issuer",
		},
		{
			name: "an endpoint without TLS", prepare: metadata("token_endpoint", "http://127.0.0.1/token"),
			says: `"http://127.0.0.1/token", which is not an https URL`, hint: "only sent over TLS",
		},
		{name: "keys without TLS", prepare: metadata("jwks_uri", "http://127.0.0.1/jwks"), says: "not an https URL"},
		{name: "a discovery document elsewhere without TLS", prepare: at("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}), says: "which is not https"},
		{name: "a token endpoint that redirects", prepare: redirect("/token"), says: "returned 307", hint: "secrets are " +
			"not sent to the new address"},
		{name: "a login with a password that redirects", prepare: func(t *testing.T, s *situation) {
			t.Helper()
			redirect("/authorize")(t, s)
			s.Supervisor, s.login.Flow = true, oidclogin.Password
			s.login.Getenv = func(string) string { return "secret" }
		}, says: "it returned 307"},
		{name: "an unknown client", prepare: func(t *testing.T, s *situation) {
			t.Helper()
			s.login.ClientID = "unrelated"
			device(http.StatusUnauthorized, `{"error":"invalid_client","error_description":"who\u001b[2J?"}`)(t, s)
		}, says: "invalid_client: who[2J?", hint: "register the client"},
		{name: "a device code that expires", prepare: device(http.StatusOK, `{"device_code":"unknown","user_code":"x",`+
			`"verification_uri":"https://x.example.com","interval":1,"expires_in":60}`), says: "expired_token", hint: "for a new one"},
		{name: "a device link without TLS", prepare: device(http.StatusOK,
			`{"device_code":"c","user_code":"x","verification_uri":"http://x.example.com"}`), says: "which is not an https URL"},
		{name: "no device codes", prepare: func(t *testing.T, s *situation) {
			t.Helper()
			metadata("device_authorization_endpoint", nil)(t, s)
			s.login.Flow = oidclogin.DeviceCode
		}, says: "does not support the device flow", hint: "browser_authcode"},
		{name: "a broken token endpoint", prepare: at("/token", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = w.Write([]byte("secret of the gateway"))
		}), says: "the issuer returned 502 Bad Gateway", hint: "try again later"},
		{name: "an unknown CA", prepare: func(_ *testing.T, s *situation) { s.login.CABundle = nil }, says: "certificate " +
			"signed by unknown authority", hint: "--ca-bundle"},
		{
			name: "an issuer without TLS", prepare: func(_ *testing.T, s *situation) { s.login.Issuer = "http://127.0.0.1" },
			says: "is not an https URL",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := setUp(t)
			test.prepare(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err := s.login.Token(ctx)
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(hintOf(err), test.hint) {
				t.Fatalf("want an error that says %q with hint %q, got %v, %q", test.says, test.hint, err, hintOf(err))
			}
			if text := err.Error() + hintOf(err) + s.person.screen(); strings.ContainsAny(text, "\x1b") ||
				strings.Contains(text, "secret of") {
				t.Errorf("unsafe to print: %q", text)
			}
			if sessions := s.login.Sessions.Sessions(); len(sessions) > 0 {
				t.Error("a session is kept")
			}
		})
	}
	t.Cleanup(func() {
		close(thief)
		for got := range thief {
			t.Errorf("a secret was sent along: %s", got)
		}
	})
}

// TestSmallSkew checks that a small clock skew is tolerated.
func TestSmallSkew(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-4 * time.Minute, 4 * time.Minute} {
		s := setUp(t)
		s.IDLifetime = time.Minute
		s.Now = func() time.Time { return time.Now().Add(-ahead) }
		s.must(t, s.login)
	}
}

// TestRefreshNeedsTheIssuer checks that the session stays and no browser opens when the issuer is down briefly.
func TestRefreshNeedsTheIssuer(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	s.must(t, s.login)
	s.change(t, func(tokens *sessioncache.Tokens) { tokens.ID.Expiry.Time = time.Now() })
	s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return r.URL.Path == "/token"
	}
	if _, err := s.login.Token(
		t.Context(),
	); err == nil || !strings.Contains(err.Error(), "refreshing the session at issuer") ||
		s.Count("/authorize") != 1 {
		t.Errorf("want an error and no new login, got %v: %v", err, s.Requests())
	}
	s.Fault = nil
	s.must(t, s.login)
	if s.Count("/authorize") != 1 {
		t.Errorf("want the session refreshed: %v", s.Requests())
	}
}

// TestRefreshIsKept checks that an interrupted refresh stores the new refresh token. The issuer accepts a refresh token
// once, so a lost one ends the session.
func TestRefreshIsKept(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(w http.ResponseWriter, path string, interrupt func()) bool{
		"the key set answers 503": func(w http.ResponseWriter, path string, _ func()) bool {
			if path == "/jwks" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return path == "/jwks"
		},
		"Ctrl-C while the key set is fetched": func(_ http.ResponseWriter, path string, interrupt func()) bool {
			if path == "/jwks" {
				interrupt()
			}
			return false
		},
		"Ctrl-C while the token endpoint answers": func(_ http.ResponseWriter, path string, interrupt func()) bool {
			if path == "/token" {
				interrupt()
			}
			return false
		},
	} {
		for _, audience := range []string{"", "cluster"} {
			t.Run(name+" "+audience, func(t *testing.T) {
				t.Parallel()
				s := setUp(t)
				s.login.RequestAudience = audience
				s.must(t, s.login)
				s.change(t, func(tokens *sessioncache.Tokens) {
					tokens.ID.Expiry.Time, tokens.Access.Expiry.Time = time.Now(), time.Now()
				})
				spent := s.tokens(t).Refresh.Token
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				s.Fault = func(w http.ResponseWriter, r *http.Request) bool { return fault(w, r.URL.Path, interrupt) }
				if token, err := s.login.Token(ctx); err == nil {
					t.Errorf("want the fault, got %v", token)
				}
				if kept := s.tokens(t); kept.Refresh.Token == spent || kept.ID.Claims["username"] != "ann" {
					t.Error("the refresh token that the issuer gave is not kept")
				}
				s.Fault = nil
				s.must(t, s.login)
				if s.Count("/authorize") != 1 || s.Count(refreshes) != 2 {
					t.Errorf("want the session refreshed, and no new login: %v", s.Requests())
				}
			})
		}
	}
}

// TestLoginIsKept checks that a command that is interrupted after the login keeps the session, at each request.
func TestLoginIsKept(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]func(r *http.Request) bool{
		"code":     func(r *http.Request) bool { return r.PostForm.Get("grant_type") == "authorization_code" },
		"key set":  func(r *http.Request) bool { return r.URL.Path == "/jwks" },
		"exchange": func(r *http.Request) bool { return strings.Contains(r.PostForm.Get("grant_type"), "token-exchange") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setUp(t)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			s.login.RequestAudience = "cluster"
			s.Fault = func(_ http.ResponseWriter, r *http.Request) bool {
				if at(r) {
					interrupt()
				}
				return false
			}
			if token, err := s.login.Token(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("want the interruption, got %v, %v", token, err)
			}
			s.Fault = nil
			s.must(t, s.login)
			if s.Count("/authorize") != 1 {
				t.Errorf("want no new login: %v", s.Requests())
			}
		})
	}
}

// TestSessionThatCannotBeKept checks that a warning, printed once, says that the next command needs a login again.
func TestSessionThatCannotBeKept(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.login.Sessions.Path = filepath.Join(blocked, "sessions.yaml")
	for range 2 {
		if _, err := s.login.Token(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if screen := s.person.screen(); strings.Count(screen, "the session cannot be saved") != 1 ||
		!strings.Contains(screen, blocked) {
		t.Errorf("want it said once, got %q", screen)
	}
}

// TestWarnings checks that successful logins print each warning once, with what to change.
func TestWarnings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(t *testing.T, s *situation)
		want    string
	}{
		"no place for sessions": {func(_ *testing.T, s *situation) {
			s.login.Sessions.Path, s.login.NoPlace = "", errors.New("$HOME is not defined")
		}, "the session cannot be saved ($HOME is not defined), so the next command must log in again"},
		"a place that is no folder": {func(t *testing.T, s *situation) {
			t.Helper()
			home := filepath.Join(t.TempDir(), "home")
			if err := os.WriteFile(home, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			s.login.Sessions.Path = filepath.Join(home, ".config", "pinniped", "sessions.yaml")
		}, "the session cannot be saved ("},
		"too many groups": {func(_ *testing.T, s *situation) {
			s.Claims = map[string]any{
				"groups": nil, "_claim_names": map[string]any{"groups": "src1"},
				"_claim_sources": map[string]any{"src1": map[string]any{"endpoint": "https://graph.windows.net/x"}},
			}
		}, "left your groups out of the ID token, because there are too many (_claim_names)"},
		"no browser": {func(_ *testing.T, s *situation) {
			browse := s.login.OpenBrowser
			s.login.OpenBrowser = func(ctx context.Context, address string) error {
				time.AfterFunc(100*time.Millisecond, func() { _ = browse(context.WithoutCancel(ctx), address) })
				return errors.New(`exec: "firefox": executable file not found in $PATH`)
			}
		}, `No browser could be started (exec: "firefox": executable file not found in $PATH): open https://`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setUp(t)
			test.prepare(t, s)
			s.must(t, s.login)
			if _, err := s.login.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			wanted := 1
			if name == "no browser" {
				wanted = s.Count(codes)
			}
			if got := strings.Count(s.person.screen(), test.want); got != wanted {
				t.Errorf("want it %d times, got %d: %s", wanted, got, s.person.screen())
			}
		})
	}
}

// TestLargeResponses checks that oversized responses of an issuer are errors.
func TestLargeResponses(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/.well-known/openid-configuration", "/jwks", "/token"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			s := setUp(t)
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == path {
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write([]byte(`{"x":"` + strings.Repeat("x", 1_000_000) + `"}`))
				}
				return r.URL.Path == path
			}
			_, err := s.login.Token(t.Context())
			want := "the response of " + s.URL + path + " is larger than 1000000 bytes"
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(hintOf(err), "issuer's administrator") {
				t.Errorf("got %v, %q", err, hintOf(err))
			}
		})
	}
}

// TestUnauthenticatedClients checks that the listener rejects requests of other pages and local programs.
func TestUnauthenticatedClients(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	s.Metadata = map[string]any{"authorization_response_iss_parameter_supported": false}
	browse := s.open
	s.login.OpenBrowser = func(ctx context.Context, address string) error {
		link, err := url.Parse(address)
		if err != nil {
			return err
		}
		callback, state := link.Query().Get("redirect_uri"), link.Query().Get("state")
		for _, unrelated := range []struct {
			method, host, query string
			header              http.Header
			status              int
		}{
			{method: http.MethodGet, query: "?code=stolen&state=guessed", status: http.StatusForbidden},
			{method: http.MethodGet, query: "?error=access_denied", status: http.StatusForbidden},
			{method: http.MethodPost, query: "?code=stolen&state=" + state, status: http.StatusForbidden}, // not a form
			{method: http.MethodPut, status: http.StatusMethodNotAllowed},
			{
				method: http.MethodGet, host: "attacker.example.com", query: "?code=stolen&state=" + state,
				status: http.StatusForbidden,
			},
			{method: http.MethodOptions, status: http.StatusBadRequest},
			{
				method: http.MethodOptions, header: http.Header{"Origin": {"https://attacker.example.com"}},
				status: http.StatusNoContent,
			},
		} {
			request, err := http.NewRequestWithContext(ctx, unrelated.method, callback+unrelated.query, nil)
			if err != nil {
				return err
			}
			request.Host, request.Header = unrelated.host, unrelated.header
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Error(err)
				continue
			}
			_ = response.Body.Close()
			if response.StatusCode != unrelated.status {
				t.Errorf("%+v: want status %d, got %d", unrelated, unrelated.status, response.StatusCode)
			}
			if origin := response.Header.Get(
				"Access-Control-Allow-Origin",
			); unrelated.method == http.MethodOptions && unrelated.header != nil &&
				origin != s.URL {
				t.Errorf("want only the issuer's pages to post, got %q", origin)
			}
			if policy := response.Header.Get(
				"Content-Security-Policy",
			); unrelated.method == http.MethodGet && unrelated.host == "" &&
				!strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") {
				t.Errorf("policy %q", policy)
			}
		}
		return browse(ctx, address)
	}
	s.must(t, s.login)
}

// TestMixUp checks that a response of another issuer is refused (RFC 9207).
func TestMixUp(t *testing.T) {
	t.Parallel()
	for _, iss := range []string{"https://other.example.com", ""} {
		s := setUp(t)
		s.Metadata = map[string]any{"authorization_response_iss_parameter_supported": true}
		s.login.OpenBrowser = func(ctx context.Context, address string) error {
			link, err := url.Parse(address)
			if err != nil {
				return err
			}
			query := url.Values{"code": {"c"}, "state": {link.Query().Get("state")}}
			if iss != "" {
				query.Set("iss", iss)
			}
			s.wait.Go(func() {
				_, _ = oidctest.Browse(
					context.WithoutCancel(ctx),
					s.CA.CertPEM(),
					link.Query().Get("redirect_uri")+"?"+query.Encode(),
				)
			})
			return nil
		}
		if _, err := s.login.Token(
			t.Context(),
		); err == nil || !strings.Contains(err.Error(), "the response comes from issuer") ||
			s.Count(codes) != 0 {
			t.Errorf("iss %q: want a refusal before the code is used, got %v: %v", iss, err, s.Requests())
		}
	}
}
