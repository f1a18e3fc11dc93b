// Package oidclogin logs users in with an OpenID Connect issuer, from the command line, and keeps their sessions.
//
// Login.Token returns a token from the cached session, by a refresh, or by a login: in a browser, with a device code,
// or with name and password at a Supervisor. Login.Renew replaces a token that a cluster refused. Login.Revoke revokes
// the tokens of a session. The package prints and prompts only through Terminal.
//
// It trusts only the issuer at its https URL, verified with the CA bundle. It checks everything that an issuer, a
// browser or a local program sends: state, nonce, PKCE, issuer, audience and signature. Requests with a secret follow
// no redirect. Errors and output contain no token, code or password.
package oidclogin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"

	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
)

const (
	defaultRequestTimeout = time.Minute
	// maxLogin is how long a user may take to log in.
	maxLogin = 90 * time.Minute

	// idMargin is how long a cached ID token must still be valid to be used. Tokens with a shorter life are used for
	// half of it.
	idMargin = 10 * time.Minute
	// accessMargin is how long an access token must still be valid to be exchanged.
	accessMargin = 10 * time.Second
	// grace is how long a pending refresh outlives an interrupted command.
	grace = 5 * time.Second
)

// Flow is the way a user logs in.
type Flow string

// The flows. Browser is the default.
const (
	Browser    Flow = "browser_authcode"
	Password   Flow = "cli_password"
	DeviceCode Flow = "device_code"
)

// Flows returns the names of the flows.
func Flows() []string { return []string{string(Browser), string(Password), string(DeviceCode)} }

// DefaultClientID is the OAuth client that every Pinniped Supervisor has.
const DefaultClientID = "pinniped-cli"

// DefaultScopes returns the scopes for a session that can be refreshed, and for the user's name and groups.
func DefaultScopes() []string {
	return []string{"offline_access", "openid", "pinniped:request-audience", "username", "groups"}
}

// UpstreamTypes returns the types of identity providers that a Supervisor can have.
func UpstreamTypes() []string { return []string{"oidc", "ldap", "activedirectory", "github"} }

// ErrPersonNeeded means that the session has ended and the user has to log in again.
var ErrPersonNeeded = errors.New("the session has ended: the user must log in again")

// Terminal prints to the user and prompts for input.
type Terminal interface {
	// Interactive reports whether the user can respond to ReadLine and ReadSecret.
	Interactive() bool
	// Print prints text.
	Print(text string)
	// ReadLine and ReadSecret prompt for a line. ReadSecret does not echo it.
	ReadLine(ctx context.Context, prompt string) (string, error)
	ReadSecret(ctx context.Context, prompt string) (string, error)
}

// Login holds the parameters of a login. Issuer, ClientID, Sessions and Terminal are required.
type Login struct {
	Issuer   string // https URL
	ClientID string
	Scopes   []string
	CABundle []byte // PEM; empty means the system roots

	// RequestAudience, if it is not the ID token's audience, is requested by token exchange (RFC 8693).
	RequestAudience string
	// UpstreamName and UpstreamType select an identity provider of a Supervisor. Empty means the default one.
	UpstreamName, UpstreamType string
	Flow                       Flow

	ListenPort  uint16 // on loopback; 0 means any free port
	SkipListen  bool
	SkipBrowser bool
	// Quiet prints and reads nothing once a browser is open, for programs such as k9s that own the screen.
	Quiet bool
	// Unattended makes a login that needs the user fail with ErrPersonNeeded.
	Unattended bool
	// Cluster is the name of the cluster on the page in the browser. It may be empty.
	Cluster string

	Sessions *sessioncache.Cache
	// NoPlace is why there is no session file although one is wanted; nil otherwise.
	NoPlace     error
	Terminal    Terminal
	OpenBrowser func(ctx context.Context, address string) error
	// Getenv returns environment variables: PINNIPED_USERNAME and PINNIPED_PASSWORD.
	Getenv func(string) string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// RequestTimeout limits every request to the issuer; 0 means one minute.
	RequestTimeout time.Duration
	// Debugf, if not nil, logs decisions. It never gets a secret.
	Debugf func(format string, args ...any)

	// used is the session of the last token returned, so that Renew can tell whether another process has renewed it.
	used *sessioncache.Tokens
	// unkept is why the last tokens are not in the cache; nil if they are.
	unkept error
	// warned are the warnings that were printed.
	warned map[string]bool
	// oversized is the URL of the last response, if it was too large; nil otherwise.
	oversized atomic.Pointer[url.URL]
}

// Token is an ID token for a cluster.
type Token struct {
	Raw    string
	Expiry time.Time
	// Cached is true if the token is from an existing session, so that Renew may get a better one.
	Cached bool
}

// Token returns a token from the cached session, or a new one. Processes that share the session get a new one one at a
// time.
func (l *Login) Token(ctx context.Context) (*Token, error) {
	if tokens := l.Sessions.Get(ctx, l.Key()); l.usable(tokens) {
		token, err := l.give(ctx, nil, tokens, true)
		if _, refused := asRefusal(err); !refused {
			return token, err
		}
		l.debugf("the issuer rejected the cached access token: %v", err)
		return l.renewed(ctx, tokens)
	}
	return l.renewed(ctx, nil)
}

// Renew returns a new token when a cluster has refused the last one: by a refresh, or if that is refused, by a login.
func (l *Login) Renew(ctx context.Context) (*Token, error) {
	l.debugf("the session's token was rejected, getting a new one")
	return l.renewed(ctx, l.used)
}

// renewed gets new tokens, unless another process has done so meanwhile. It does not use the tokens in refused.
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
		l.debugf("the session ended, logging in again: %v", refused)
	}
	tokens, err = p.logIn(ctx, tokens)
	if err != nil {
		return nil, err
	}
	l.keep(ctx, tokens)
	return l.give(ctx, p, tokens, false)
}

// refreshed refreshes the session and returns its token. The error is a refusal if the issuer refuses the refresh or
// the exchange.
func (l *Login) refreshed(ctx context.Context, p *provider, tokens *sessioncache.Tokens) (*Token, error) {
	renewed, err := p.refresh(ctx, tokens)
	if err != nil {
		return nil, fmt.Errorf("refreshing the session at issuer %q: %w", l.Issuer, l.explain(err))
	}
	l.keep(ctx, renewed)
	return l.give(ctx, p, renewed, false)
}

// logIn logs the user in. before is the session that has ended, or nil.
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

// refresh gets new tokens for a session. An issuer may accept a refresh token once, and end the session when it is
// reused. So the request outlives an interrupted command, and the new refresh token is stored before anything can fail:
// with the old ID token until the new one is verified.
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

// outlive returns a context that ends a few seconds after ctx.
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

// give returns the token for the cluster: one of tokens, or one that the issuer exchanges for them. p may be nil.
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
		return nil, fmt.Errorf("getting a token from %q for audience %q: %w", l.Issuer, l.RequestAudience, err)
	}
	token.Cached = cached
	return token, nil
}

// usable reports whether tokens can be used as they are, or exchanged.
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

// Key returns the session's key, computed as Pinniped's CLI does.
func (l *Login) Key() sessioncache.Key {
	scopes := slices.Clone(l.Scopes)
	slices.Sort(scopes)
	return sessioncache.Key{
		Issuer: l.Issuer, ClientID: l.ClientID, Scopes: scopes, UpstreamProviderName: l.UpstreamName,
		RedirectURI: "http://localhost:" + strconv.Itoa(int(l.ListenPort)) + "/callback",
	}
}

// keep stores tokens in the cache, even when the command has been interrupted.
func (l *Login) keep(ctx context.Context, tokens *sessioncache.Tokens) {
	if l.unkept = l.NoPlace; l.unkept == nil {
		l.unkept = l.Sessions.Put(context.WithoutCancel(ctx), l.Key(), *tokens)
	}
}

// warn prints a warning once.
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

// warnUnkept says that the next command needs a login again, if the tokens could not be stored.
func (l *Login) warnUnkept() {
	if l.unkept != nil {
		l.warn("the session cannot be saved (%v), so the next command must log in again", l.unkept)
	}
}

// warnOverage says that the issuer left groups out of the ID token because there are too many (OpenID Connect Core,
// section 5.6.2, as Entra ID uses it).
func (l *Login) warnOverage(id *sessioncache.IDToken) {
	names, _ := id.Claims["_claim_names"].(map[string]any)
	if _, ok := names["groups"]; ok {
		l.warn("issuer %s left your groups out of the ID token, because there are too many (_claim_names): ask its "+
			"administrator to put fewer groups into tokens (in Entra ID, only groups assigned to the application)", l.Issuer)
	}
}

// alone waits until no other process logs in for this session. If locking fails, it continues without a lock.
func (l *Login) alone(ctx context.Context) (unlock func()) {
	waiting := time.AfterFunc(2*time.Second, func() {
		if !l.Quiet {
			l.Terminal.Print("Another command is already logging in: waiting for it.\n")
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
	text := func(t *sessioncache.Tokens) (texts [2]string) {
		if t.ID != nil {
			texts[0] = t.ID.Token
		}
		if t.Access != nil {
			texts[1] = t.Access.Token
		}
		return texts
	}
	return text(a) == text(b)
}

func (l *Login) now() time.Time {
	if l.Now == nil {
		return time.Now()
	}
	return l.Now()
}

func (l *Login) requestTimeout() time.Duration {
	return cmp.Or(l.RequestTimeout, defaultRequestTimeout)
}

func (l *Login) debugf(format string, args ...any) {
	if l.Debugf != nil {
		l.Debugf(format, args...)
	}
}

// over explains to the user why ctx ended.
func over(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return withHint(fmt.Errorf("no login in time: %w", ctx.Err()), "run the command again")
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
