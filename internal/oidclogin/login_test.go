package oidclogin_test

import (
	"context"
	"errors"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
	"github.com/pinniped-toolkit/pinniped/test/oidctest"
)

// person is a terminal with a user.
type person struct {
	types       chan string // lines that the user types
	interactive bool

	mu    sync.Mutex
	shown strings.Builder
	saw   chan struct{} // closed when the first text is printed
	once  sync.Once
}

func newPerson() *person { return &person{types: make(chan string, 4), saw: make(chan struct{})} }

func (p *person) Interactive() bool { return p.interactive }

func (p *person) Print(text string) {
	p.mu.Lock()
	p.shown.WriteString(text)
	p.mu.Unlock()
	p.once.Do(func() { close(p.saw) })
}

func (p *person) screen() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shown.String()
}

func (p *person) ReadLine(ctx context.Context, prompt string) (string, error) {
	p.Print(prompt)
	select {
	case line, ok := <-p.types:
		if !ok {
			return "", io.EOF
		}
		return line, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (p *person) ReadSecret(ctx context.Context, prompt string) (string, error) {
	return p.ReadLine(ctx, prompt)
}

// situation is an issuer, a user with a browser, and a login.
type situation struct {
	*oidctest.Issuer
	person *person
	login  *oidclogin.Login

	mu    sync.Mutex
	pages []string // shown in the browser
	wait  sync.WaitGroup
}

func setUp(t *testing.T) *situation {
	t.Helper()
	issuer, err := oidctest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(issuer.Close)
	s := &situation{Issuer: issuer, person: newPerson()}
	t.Cleanup(s.wait.Wait)
	s.login = s.another(filepath.Join(t.TempDir(), "pinniped", "sessions.yaml"))
	s.login.Debugf = t.Logf
	return s
}

// another returns a login of another process.
func (s *situation) another(sessions string) *oidclogin.Login {
	return &oidclogin.Login{
		Issuer:   s.URL,
		ClientID: oidctest.ClientID,
		CABundle: s.CA.CertPEM(),
		Scopes:   []string{"offline_access", "openid", "pinniped:request-audience", "username", "groups"},
		Sessions: &sessioncache.Cache{
			Path: sessions,
			Now:  time.Now,
		},
		Terminal:    s.person,
		OpenBrowser: s.open,
		Cluster:     "cluster.example.com",
	}
}

func (s *situation) open(ctx context.Context, address string) error {
	s.wait.Go(func() {
		page, err := oidctest.Browse(context.WithoutCancel(ctx), s.CA.CertPEM(), address)
		if err != nil {
			page = "browser: " + err.Error()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pages = append(s.pages, page)
	})
	return nil
}

// page returns the last page that the browser showed.
func (s *situation) page() string {
	s.wait.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pages) == 0 {
		return ""
	}
	return s.pages[len(s.pages)-1]
}

func (s *situation) tokens(t *testing.T) sessioncache.Tokens {
	t.Helper()
	sessions := s.login.Sessions.Sessions()
	if len(sessions) != 1 {
		t.Fatalf("want one session, got %d", len(sessions))
	}
	return sessions[0].Tokens
}

// change rewrites the only session.
func (s *situation) change(t *testing.T, change func(*sessioncache.Tokens)) {
	t.Helper()
	session := s.login.Sessions.Sessions()[0]
	change(&session.Tokens)
	if err := s.login.Sessions.Put(t.Context(), session.Key, session.Tokens); err != nil {
		t.Fatal(err)
	}
}

func hintOf(err error) string {
	if h, ok := errors.AsType[interface {
		error
		Hint() string
	}](err); ok {
		return h.Hint()
	}
	return ""
}

const codes, refreshes, exchanges = "POST /token authorization_code", "POST /token refresh_token", "token-exchange"

// must logs in and checks the token.
func (s *situation) must(t *testing.T, login *oidclogin.Login) *oidclogin.Token {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	token, err := login.Token(ctx)
	if err != nil {
		t.Fatalf("%v (hint: %s)", err, hintOf(err))
	}
	audience := login.RequestAudience
	if audience == "" {
		audience = login.ClientID
	}
	if !s.Accepts(token.Raw, audience) {
		t.Errorf("the issuer has not issued this token for %s", audience)
	}
	return token
}

func TestBrowser(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"query", "form_post"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := setUp(t)
			s.FormPost = mode == "form_post"
			token := s.must(t, s.login)
			if token.Cached || time.Until(token.Expiry) < 50*time.Minute {
				t.Errorf("want a new token for an hour, got %v until %s", token.Cached, token.Expiry)
			}
			for _, want := range []string{
				"<strong>ann</strong>, you have been logged in and may now close this tab", "<dd>cluster.example.com</dd>",
				"<dd>" + s.URL + "</dd>",
			} {
				if !strings.Contains(s.page(), want) {
					t.Errorf("the page has no %q:\n%s", want, s.page())
				}
			}
			if !strings.Contains(s.person.screen(), "Log in by visiting this link:\n\n    "+s.URL+"/authorize?") ||
				strings.Contains(s.person.screen(), "paste") {
				t.Errorf("want the link, and no prompt without a terminal:\n%s", s.person.screen())
			}
			if strings.Contains(s.person.screen(), "form_post") != s.FormPost {
				t.Errorf("response mode in %s", s.person.screen())
			}
			again := s.must(t, s.login)
			if again.Raw != token.Raw || !again.Cached || s.Count(codes) != 1 || s.Count("/.well-known") != 1 {
				t.Errorf("want the same token without asking the issuer: %v", s.Requests())
			}
		})
	}
}

// TestSession checks the format and the key of the session, which are those of Pinniped's CLI.
func TestSession(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	s.login.ListenPort = 0
	s.login.UpstreamName, s.login.UpstreamType = "corporate", "oidc"
	token := s.must(t, s.login)
	session := s.login.Sessions.Sessions()[0]
	want := sessioncache.Key{
		Issuer:               s.URL,
		ClientID:             "pinniped-cli",
		Scopes:               []string{"groups", "offline_access", "openid", "pinniped:request-audience", "username"},
		RedirectURI:          "http://localhost:0/callback",
		UpstreamProviderName: "corporate",
	}
	if diff := cmp.Diff(want, session.Key); diff != "" {
		t.Errorf("key (-want +got):\n%s", diff)
	}
	if session.Tokens.ID.Token != token.Raw || session.Tokens.ID.Claims["username"] != "ann" ||
		session.Tokens.Refresh.Token == "" ||
		session.Tokens.Access.Token == "" {
		t.Error("want all tokens, with the claims")
	}
	if link := s.person.screen(); !strings.Contains(link, "pinniped_idp_name=corporate&pinniped_idp_type=oidc") ||
		!strings.Contains(link, "code_challenge_method=S256") {
		t.Errorf("want the identity provider and PKCE in %s", link)
	}
}

// TestRenewal logs in with cached sessions that are stale, or that the issuer no longer knows.
func TestRenewal(t *testing.T) {
	t.Parallel()
	stale := func(tokens *sessioncache.Tokens) {
		tokens.ID.Expiry.Time, tokens.Access.Expiry.Time = time.Now().Add(5*time.Minute), time.Now().Add(-time.Minute)
	}
	for _, test := range []struct {
		name              string
		audience          string
		prepare           func(*testing.T, *situation)
		codes, refreshes  int
		browserIsUsed     bool
		wantNewerThanLast bool
	}{
		{name: "uses what is still good", codes: 1},
		{
			name: "refreshes what soon expires", codes: 1, refreshes: 1,
			prepare: func(t *testing.T, s *situation) { t.Helper(); s.change(t, stale) },
		},
		{name: "logs in again without a refresh token", codes: 2, prepare: func(t *testing.T, s *situation) {
			t.Helper()
			s.change(t, func(tokens *sessioncache.Tokens) { stale(tokens); tokens.Refresh = nil })
		}},
		{name: "logs in again when the session was revoked", codes: 2, refreshes: 1, prepare: func(t *testing.T, s *situation) {
			t.Helper()
			s.change(t, stale)
			s.EndSessions()
		}},
		{name: "logs in again when the refresh gives another user", codes: 2, refreshes: 1, prepare: func(t *testing.T, s *situation) {
			t.Helper()
			s.change(t, func(tokens *sessioncache.Tokens) { stale(tokens); tokens.ID.Claims["sub"] = "somebody else" })
		}},
		{name: "exchanges a good access token", audience: "cluster", codes: 1},
		{
			name: "refreshes an access token that expired", audience: "cluster", codes: 1, refreshes: 1,
			prepare: func(t *testing.T, s *situation) { t.Helper(); s.change(t, stale) },
		},
		{name: "refreshes an access token that was revoked", audience: "cluster", codes: 1, refreshes: 1, prepare: func(t *testing.T, s *situation) {
			t.Helper()
			s.change(t, func(tokens *sessioncache.Tokens) { tokens.Access.Token = "revoked" })
		}},
		{
			name: "logs in again when all was revoked", audience: "cluster", codes: 2, refreshes: 1,
			prepare: func(t *testing.T, s *situation) { t.Helper(); s.EndSessions() },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := setUp(t)
			s.login.RequestAudience = test.audience
			s.must(t, s.login)
			if test.prepare != nil {
				test.prepare(t, s)
			}
			s.must(t, s.login)
			if s.Count(codes) != test.codes || s.Count(refreshes) != test.refreshes {
				t.Errorf("want %d logins and %d refreshes: %v", test.codes, test.refreshes, s.Requests())
			}
			// The renewed session is stored.
			s.must(t, s.login)
			if s.Count(codes) != test.codes || s.Count(refreshes) != test.refreshes {
				t.Errorf("want nothing more: %v", s.Requests())
			}
		})
	}
}

// TestManyAtOnce checks that many commands that need a login at once prompt the user once, and use the refresh token
// once: an issuer may revoke a refresh token that is reused.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	together := func() {
		var all sync.WaitGroup
		for range 12 {
			login := s.another(s.login.Sessions.Path)
			all.Go(func() { s.must(t, login) })
		}
		all.Wait()
	}
	together()
	if s.Count("GET /authorize") != 1 || s.Count(codes) != 1 {
		t.Errorf("want one login: %v", s.Requests())
	}
	s.change(t, func(tokens *sessioncache.Tokens) { tokens.ID.Expiry.Time = time.Now() })
	together()
	if s.Count(codes) != 1 || s.Count(refreshes) != 1 {
		t.Errorf("want one refresh: %v", s.Requests())
	}
}

// TestPasted logs in with a browser on another computer: the user pastes the code into the terminal.
func TestPasted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		types func(code, address string) []string
	}{
		{name: "takes the code", types: func(code, _ string) []string { return []string{"", "  " + code + " "} }},
		{
			name:  "takes the address that could not be opened",
			types: func(_, address string) []string { return []string{address} },
		},
		{name: "asks again after an address of another login", types: func(_, address string) []string {
			return []string{"http://127.0.0.1:0/callback?code=x&state=other", address}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := setUp(t)
			s.login.SkipListen, s.login.SkipBrowser, s.person.interactive = true, true, true
			go func() {
				<-s.person.saw
				for !strings.Contains(s.person.screen(), "\n\n    https://") {
					time.Sleep(time.Millisecond)
				}
				link := strings.Fields(s.person.screen()[strings.Index(s.person.screen(), "https://"):])[0]
				address := s.redirectOf(t, link)
				parsed, err := url.Parse(address)
				if err != nil {
					t.Error(err)
					return
				}
				for _, line := range test.types(parsed.Query().Get("code"), address) {
					s.person.types <- line
				}
			}()
			s.must(t, s.login)
		})
	}
}

// redirectOf returns the address to which the issuer redirects a browser that opens link.
func (s *situation) redirectOf(t *testing.T, link string) string {
	t.Helper()
	_, err := oidctest.Browse(t.Context(), s.CA.CertPEM(), link)
	failed, ok := errors.AsType[*url.Error](err)
	if !ok {
		t.Errorf("want a browser that cannot open port 0, got %v", err)
		return ""
	}
	return failed.URL
}

func TestDeviceCode(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	s.login.Flow = oidclogin.DeviceCode
	go func() {
		<-s.person.saw
		for s.Count("device_code") < 1 { // polled once without success
			time.Sleep(time.Millisecond)
		}
		s.ApproveDevices()
	}()
	s.must(t, s.login)
	for _, want := range []string{s.URL + "/enter\n", "WDJB-MJHT\n", s.URL + "/enter?user_code=WDJB-MJHT\n"} {
		if !strings.Contains(s.person.screen(), want) {
			t.Errorf("the screen has no %q:\n%s", want, s.person.screen())
		}
	}
	if s.Count("/authorize") != 0 {
		t.Errorf("want no browser: %v", s.Requests())
	}
}

// TestPassword logs in with name and password at a Supervisor.
func TestPassword(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		environment map[string]string
		types       []string
		noTerminal  bool
		notSuper    bool
		says, hint  string
	}{
		{name: "asks for both", types: []string{"ann", "password123"}},
		{
			name:        "takes both from the environment",
			environment: map[string]string{"PINNIPED_USERNAME": "ann", "PINNIPED_PASSWORD": "password123"}, noTerminal: true,
		},
		{
			name: "asks for what is missing", environment: map[string]string{"PINNIPED_USERNAME": "ann"},
			types: []string{"password123"},
		},
		{
			name: "says that they are not accepted", types: []string{"ann", "wrong"}, says: "access_denied: ",
			hint: "run the command again",
		},
		{name: "needs a terminal", noTerminal: true, says: "there is no terminal", hint: "set PINNIPED_USERNAME and " +
			"PINNIPED_PASSWORD"},
		{
			name: "sends them to no other issuer", types: []string{"ann", "password123"}, notSuper: true,
			says: "is not a Pinniped Supervisor", hint: "browser_authcode",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := setUp(t)
			s.Supervisor, s.person.interactive, s.login.Flow = !test.notSuper, !test.noTerminal, oidclogin.Password
			s.login.UpstreamName, s.login.UpstreamType, s.login.RequestAudience = "corporate", "ldap", "cluster"
			s.login.Getenv = func(name string) string { return test.environment[name] }
			for _, line := range test.types {
				s.person.types <- line
			}
			if test.says == "" {
				s.must(t, s.login)
				if s.Count("GET /authorize") != 1 || s.Count(exchanges) != 1 {
					t.Errorf("requests: %v", s.Requests())
				}
				return
			}
			_, err := s.login.Token(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(hintOf(err), test.hint) {
				t.Errorf("want an error that says %q with hint %q, got %v, %q", test.says, test.hint, err, hintOf(err))
			}
			if strings.Contains(err.Error()+hintOf(err)+s.person.screen(), "wrong") ||
				test.notSuper && s.Count("/authorize") != 0 {
				t.Errorf("the password went somewhere: %v", s.Requests())
			}
		})
	}
}

// TestQuiet checks that nothing is printed with Quiet, for programs that own the whole terminal, once a browser is
// open.
func TestQuiet(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	s.login.Quiet, s.person.interactive = true, true
	s.must(t, s.login)
	if s.person.screen() != "" {
		t.Errorf("want an empty screen, got %q", s.person.screen())
	}
	s = setUp(t)
	s.login.Quiet = true
	browse := s.login.OpenBrowser
	s.login.OpenBrowser = func(_ context.Context, address string) error {
		go func() { // the user opens the printed link
			for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
				if strings.Contains(s.person.screen(), "Log in by visiting this link") {
					break
				}
			}
			_ = browse(t.Context(), address)
		}()
		return errors.New("no browser")
	}
	s.must(t, s.login)
	if !strings.Contains(s.person.screen(), "Log in by visiting this link") {
		t.Errorf("want the link where no browser opens, got %q", s.person.screen())
	}
}

func TestWithoutListener(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	s.login.SkipListen = true
	go func() {
		<-s.person.saw
		s.ApproveDevices()
	}()
	s.must(t, s.login) // by device code
	s = setUp(t)
	s.login.SkipListen, s.Metadata = true, map[string]any{"device_authorization_endpoint": nil}
	if _, err := s.login.Token(t.Context()); err == nil || !strings.Contains(hintOf(err), "--skip-listen") {
		t.Errorf("want an error with a hint, got %v, %q", err, hintOf(err))
	}
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	s.must(t, s.login)
	tokens := s.tokens(t)
	result, err := s.login.Revoke(t.Context(), &tokens)
	if err != nil || result != oidclogin.Revoked || s.Count("POST /revoke") != 2 {
		t.Errorf("want both tokens revoked, got %v, %v: %v", result, err, s.Requests())
	}
	s.change(t, func(tokens *sessioncache.Tokens) { tokens.ID.Expiry.Time = time.Now() })
	s.must(t, s.login)
	if s.Count(codes) != 2 {
		t.Errorf("want a new login after a refresh in vain: %v", s.Requests())
	}
	s.Metadata = map[string]any{"revocation_endpoint": nil}
	if result, err := s.login.Revoke(t.Context(), &tokens); err != nil || result != oidclogin.NotOffered {
		t.Errorf("want none offered, got %v, %v", result, err)
	}
	if result, err := s.login.Revoke(t.Context(), &sessioncache.Tokens{}); err != nil || result != oidclogin.NothingToDo {
		t.Errorf("want nothing to do, got %v, %v", result, err)
	}
}

// TestInterrupted checks a user who interrupts the login.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.login.OpenBrowser = func(context.Context, string) error {
		cancel()
		return nil
	}
	if _, err := s.login.Token(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("want the interruption, got %v", err)
	}
}

func TestFlows(t *testing.T) {
	t.Parallel()
	if got := oidclogin.Flows(); !slices.Equal(got, []string{"browser_authcode", "cli_password", "device_code"}) {
		t.Errorf("flows %q", got)
	}
}

// TestUnattended checks that without a user a session is used and refreshed; if a login is needed, nothing is opened or
// printed.
func TestUnattended(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	s.login.Unattended = true
	if _, err := s.login.Token(t.Context()); !errors.Is(err, oidclogin.ErrPersonNeeded) {
		t.Errorf("without a session: got %v", err)
	}
	if shown := s.person.screen(); shown != "" {
		t.Errorf("the terminal shows %q", shown)
	}
	s.login.Unattended = false
	if _, err := s.login.Token(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.login.Unattended = true
	if _, err := s.login.Renew(t.Context()); err != nil {
		t.Errorf("refreshing the session: %v", err)
	}
}
