// Package oidclogin logs people in with an OpenID Connect issuer, from the command line, and keeps their sessions.
//
// A Login with its fields filled in gives tokens: Token from the session in the cache, by a refresh, or by a login in
// the browser, by a device code, or with name and password at a Supervisor; Renew when a cluster refused the token that
// Token gave. Logout ends sessions. The package knows no command line: what is printed and asked goes through Terminal.
//
// What it trusts: the issuer at its https address, verified with the CA bundle. What an issuer, a browser or a
// program on this computer sends is checked before it is used: state, nonce, PKCE, issuer, audience and signature.
// Requests that carry a secret follow no redirect. No token, code or password is in an error or on the screen.
package oidclogin

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"

	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
)

const (
	defaultRequestTimeout = time.Minute
	// maxLogin is how long a person may take to log in.
	maxLogin = 90 * time.Minute

	// idMargin is how long an ID token must be good for to be used from the cache. Tokens with a shorter life are used
	// for half of it.
	idMargin = 10 * time.Minute
	// accessMargin is how long an access token must be good for to be exchanged.
	accessMargin = 10 * time.Second
	// grace is how long a refresh that is on its way outlives an interrupted command.
	grace = 5 * time.Second
)

// Flow is how a person logs in.
type Flow string

// The flows. Browser is what an empty flow means.
const (
	Browser    Flow = "browser_authcode"
	Password   Flow = "cli_password"
	DeviceCode Flow = "device_code"
)

// Flows lists the flows.
func Flows() []string { return []string{string(Browser), string(Password), string(DeviceCode)} }

// DefaultClientID is the OAuth client that every Supervisor of Pinniped knows.
const DefaultClientID = "pinniped-cli"

// DefaultScopes are the scopes to request: a session that can be refreshed, and name and groups of the user.
func DefaultScopes() []string {
	return []string{"offline_access", "openid", "pinniped:request-audience", "username", "groups"}
}

// UpstreamTypes lists the types of identity providers that a Supervisor can have.
func UpstreamTypes() []string { return []string{"oidc", "ldap", "activedirectory", "github"} }

// ErrPersonNeeded means that the session at the issuer is over, and that a person has to log in again.
var ErrPersonNeeded = errors.New("the session has ended: the user must log in again")

// Terminal is how a Login talks to a person.
type Terminal interface {
	// Interactive reports whether ReadLine and ReadSecret can be answered.
	Interactive() bool
	// Print shows text.
	Print(text string)
	// ReadLine and ReadSecret ask for a line; what is typed for a secret is not shown.
	ReadLine(ctx context.Context, prompt string) (string, error)
	ReadSecret(ctx context.Context, prompt string) (string, error)
}

// Login says how to log in. Its zero values mean what the comments say; Issuer, ClientID, Sessions and Terminal are
// needed.
type Login struct {
	Issuer   string // https URL
	ClientID string
	Scopes   []string
	CABundle []byte // PEM; empty means the system roots

	// RequestAudience, if it is not the ID token's own, is asked for by token exchange (RFC 8693).
	RequestAudience string
	// UpstreamName and UpstreamType name an identity provider of a Supervisor. Empty is its default.
	UpstreamName, UpstreamType string
	Flow                       Flow

	ListenPort  uint16 // on loopback; 0 means any free one
	SkipListen  bool
	SkipBrowser bool
	// Quiet prints nothing, and reads nothing from the terminal, once a browser is open: a program such as k9s owns the
	// screen.
	Quiet bool
	// Unattended says that no person can log in: where that is needed, the login fails with ErrPersonNeeded.
	Unattended bool
	// Cluster is what the page in the browser calls the cluster. It may be empty.
	Cluster string

	Sessions *sessioncache.Cache
	// NoPlace is why there is no file for sessions, though nobody asked for none; nil otherwise.
	NoPlace     error
	Terminal    Terminal
	OpenBrowser func(ctx context.Context, address string) error
	// Getenv reads the environment, for PINNIPED_USERNAME and PINNIPED_PASSWORD.
	Getenv func(string) string
	// Now is the clock; nil means the computer's.
	Now func() time.Time
	// RequestTimeout bounds every request to the issuer; 0 means a minute.
	RequestTimeout time.Duration
	// Debugf, if not nil, is told what is decided. It is never given a secret.
	Debugf func(format string, args ...any)

	// used is the session of the last token given, so that Renew can tell whether another process has renewed it.
	used *sessioncache.Tokens
	// unkept is why the last tokens are not in the cache; nil if they are.
	unkept error
	// warned are the warnings that were printed.
	warned map[string]bool
	// oversized is where a response came from that was too large; nil if the last one was not.
	oversized atomic.Pointer[url.URL]
}

// Token is an ID token for a cluster.
type Token struct {
	Raw    string
	Expiry time.Time
	// Cached is true if the token comes from a session of an earlier login, so that Renew may get a better one.
	Cached bool
}

// Token returns a token: of the session in the cache, or a new one. Only one process at a time gets a new one for the
// same session.
func (l *Login) Token(ctx context.Context) (*Token, error) {
	if tokens := l.Sessions.Get(ctx, l.Key()); l.usable(tokens) {
		token, err := l.give(ctx, nil, tokens, true)
		if _, refused := asRefusal(err); !refused {
			return token, err
		}
		l.debugf("the issuer refused the access token in the session cache: %v", err)
		return l.renewed(ctx, tokens)
	}
	return l.renewed(ctx, nil)
}

// Renew returns a token other than the last one given, which a cluster has refused: by a refresh, or if that is
// refused, by a new login.
func (l *Login) Renew(ctx context.Context) (*Token, error) {
	l.debugf("the session's token was rejected, getting a new one")
	return l.renewed(ctx, l.used)
}

// renewed gets new tokens, unless another process has done so meanwhile. It makes no use of the tokens in refused.
func (l *Login) renewed(ctx context.Context, refused *sessioncache.Tokens) (*Token, error) {
	unlock := l.alone(ctx)
	defer unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	tokens := l.Sessions.Get(ctx, l.Key())
	if l.usable(tokens) && !same(tokens, refused) {
		l.debugf("using the session that another process has renewed")
		return l.give(ctx, nil, tokens, true)
	}
	p, err := l.discover(ctx)
	if err != nil {
		return nil, err
	}
	defer p.client.CloseIdleConnections()
	defer l.warnUnkept()
	if tokens != nil && tokens.Refresh != nil {
		token, problem := l.refreshed(ctx, p, tokens)
		refused, ok := asRefusal(problem)
		if !ok {
			return token, problem
		}
		l.debugf("the session is over, logging in again: %v", refused)
	}
	tokens, err = p.logIn(ctx, tokens)
	if err != nil {
		return nil, err
	}
	l.keep(ctx, tokens)
	return l.give(ctx, p, tokens, false)
}

// refreshed returns a token of the session, which it refreshes. If the issuer refuses that, or what comes of it, the
// error is a refusal.
func (l *Login) refreshed(ctx context.Context, p *provider, tokens *sessioncache.Tokens) (*Token, error) {
	renewed, err := p.refresh(ctx, tokens)
	if err != nil {
		return nil, fmt.Errorf("refreshing the session at issuer %q: %w", l.Issuer, l.explain(err))
	}
	l.keep(ctx, renewed)
	return l.give(ctx, p, renewed, false)
}

// logIn lets a person log in. before is the session that is over, or nil.
func (p *provider) logIn(ctx context.Context, before *sessioncache.Tokens) (*sessioncache.Tokens, error) {
	l := p.login
	if l.Unattended {
		return nil, ErrPersonNeeded
	}
	ctx, cancel := context.WithTimeout(ctx, maxLogin)
	defer cancel()
	switch l.Flow {
	case Password:
		return p.logInWithPassword(ctx)
	case DeviceCode:
		return p.logInWithDeviceCode(ctx)
	case Browser:
	}
	return p.logInWithBrowser(ctx, before)
}

// refresh gets new tokens for a session. An issuer may take a refresh token only once, and end the session when it is
// used again. So the request is not canceled with the command, and a new refresh token is kept before anything that
// can fail: until the new ID token is verified, next to the one before.
func (p *provider) refresh(ctx context.Context, tokens *sessioncache.Tokens) (*sessioncache.Tokens, error) {
	p.login.debugf("refreshing the session")
	request, done := outlive(ctx)
	defer done()
	token, err := p.config.TokenSource(p.context(request), &oauth2.Token{RefreshToken: tokens.Refresh.Token}).Token()
	if err != nil {
		return nil, err
	}
	if token.RefreshToken != tokens.Refresh.Token {
		p.login.keep(ctx, &sessioncache.Tokens{
			Refresh: &sessioncache.RefreshToken{Token: token.RefreshToken}, ID: tokens.ID,
		})
	}
	return p.accept(ctx, token, "", tokens)
}

// outlive returns a context that ends some seconds after ctx does.
func outlive(ctx context.Context) (longer context.Context, done func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// give returns the token for the cluster that is in tokens, or that the issuer exchanges for what is in them. p may
// be nil.
func (l *Login) give(ctx context.Context, p *provider, tokens *sessioncache.Tokens, cached bool) (*Token, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.used = tokens
	if !l.needsExchange(tokens) {
		return &Token{Raw: tokens.ID.Token, Expiry: tokens.ID.Expiry.Time, Cached: cached}, nil
	}
	if p == nil {
		var err error
		if p, err = l.discover(ctx); err != nil {
			return nil, err
		}
		defer p.client.CloseIdleConnections()
	}
	token, err := p.exchange(ctx, tokens)
	if err != nil {
		return nil, err
	}
	token.Cached = cached
	return token, nil
}

// usable reports whether tokens can be given as they are, or exchanged.
func (l *Login) usable(tokens *sessioncache.Tokens) bool {
	if tokens == nil {
		return false
	}
	if l.needsExchange(tokens) {
		return tokens.Access != nil && tokens.Access.Token != "" &&
			(tokens.Access.Expiry.IsZero() || tokens.Access.Expiry.Sub(l.now()) >= accessMargin)
	}
	if tokens.ID == nil || tokens.ID.Token == "" {
		return false
	}
	margin := idMargin
	issued, knowsIssued := tokens.ID.Claims["iat"].(float64)
	expires, knowsExpires := tokens.ID.Claims["exp"].(float64)
	if knowsIssued && knowsExpires {
		margin = min(margin, time.Duration(expires-issued)*time.Second/2)
	}
	return tokens.ID.Expiry.Sub(l.now()) >= margin
}

func (l *Login) needsExchange(tokens *sessioncache.Tokens) bool {
	return l.RequestAudience != "" && (tokens.ID == nil || !names(tokens.ID, l.RequestAudience))
}

// Key is the session's key: the one that Pinniped's CLI computes.
func (l *Login) Key() sessioncache.Key {
	return sessioncache.Key{
		Issuer: l.Issuer, ClientID: l.ClientID, Scopes: sorted(l.Scopes), UpstreamProviderName: l.UpstreamName,
		RedirectURI: "http://localhost:" + strconv.Itoa(int(l.ListenPort)) + "/callback",
	}
}

// keep puts tokens into the cache, also when the command has been interrupted.
func (l *Login) keep(ctx context.Context, tokens *sessioncache.Tokens) {
	if l.unkept = l.NoPlace; l.unkept == nil {
		l.unkept = l.Sessions.Put(context.WithoutCancel(ctx), l.Key(), *tokens)
	}
}

// warn prints a warning, once.
func (l *Login) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	l.debugf("%s", text)
	if l.warned[text] || l.Quiet {
		return
	}
	if l.warned == nil {
		l.warned = map[string]bool{}
	}
	l.warned[text] = true
	l.Terminal.Print("warning: " + text + "\n")
}

// warnNoIDToken says why a person has to log in so often.
func (l *Login) warnNoIDToken() {
	l.warn("issuer %s returns no ID token on refresh, so a login is needed whenever the ID token expires: "+
		"ask its administrator to return one or extend its lifetime", l.Issuer)
}

// warnUnkept says that the next command needs a login again.
func (l *Login) warnUnkept() {
	if l.unkept != nil {
		l.warn("the session cannot be kept, so the next command needs a login again: %v", l.unkept)
	}
}

// warnOverage says that an issuer has left groups out of an ID token because there are too many: OpenID Connect Core,
// section 5.6.2, as Entra ID uses it.
func (l *Login) warnOverage(id *sessioncache.IDToken) {
	names, _ := id.Claims["_claim_names"].(map[string]any)
	if _, ok := names["groups"]; ok {
		l.warn("issuer %s left your groups out of the ID token, because there are too many (_claim_names): ask its "+
			"administrator to put fewer groups into tokens, in Entra ID those that are assigned to the application", l.Issuer)
	}
}

// alone waits until no other process logs in for this session. Where that cannot be found out, it goes on.
func (l *Login) alone(ctx context.Context) (unlock func()) {
	waiting := time.AfterFunc(2*time.Second, func() {
		if !l.Quiet {
			l.Terminal.Print("Another command is logging in already: waiting for it.\n")
		}
	})
	defer waiting.Stop()
	unlock, err := l.Sessions.Alone(ctx, l.Key())
	if err != nil {
		l.debugf("logging in without the lock that other processes share: %v", err)
		return func() {}
	}
	return unlock
}

// same reports whether two sessions have the same tokens for clusters.
func same(a, b *sessioncache.Tokens) bool {
	if a == nil || b == nil {
		return false
	}
	text := func(t *sessioncache.Tokens) (id, access string) {
		if t.ID != nil {
			id = t.ID.Token
		}
		if t.Access != nil {
			access = t.Access.Token
		}
		return id, access
	}
	idA, accessA := text(a)
	idB, accessB := text(b)
	return idA == idB && accessA == accessB
}

func (l *Login) now() time.Time {
	if l.Now == nil {
		return time.Now()
	}
	return l.Now()
}

func (l *Login) requestTimeout() time.Duration {
	if l.RequestTimeout == 0 {
		return defaultRequestTimeout
	}
	return l.RequestTimeout
}

func (l *Login) debugf(format string, args ...any) {
	if l.Debugf != nil {
		l.Debugf(format, args...)
	}
}

// over reports how ctx ended, in words for a person.
func over(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return withHint(fmt.Errorf("no login in time: %w", ctx.Err()), "run the command again")
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
