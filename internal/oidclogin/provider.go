package oidclogin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/keyset"
	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
)

const (
	// maxBody limits every response of an issuer, in bytes. The oauth2 library truncates at 1 MiB without an error.
	maxBody = 1_000_000
	// maxRedirects limits the redirects for the discovery document and the keys.
	maxRedirects = 5
	// clockLeeway is how far the local clock may be ahead of the issuer's.
	clockLeeway = 5 * time.Minute
)

// provider is an issuer with its discovery document.
type provider struct {
	login    *Login
	client   *http.Client
	config   oauth2.Config // without a redirect URL
	metadata metadata
	skew     atomic.Int64 // nanoseconds by which the local clock was ahead at the issuer's last response
}

// metadata holds the fields of the discovery document that go-oidc does not read.
type metadata struct {
	AuthorizationEndpoint string   `json:"authorization_endpoint"`
	TokenEndpoint         string   `json:"token_endpoint"`
	JWKSURI               string   `json:"jwks_uri"`
	DeviceEndpoint        string   `json:"device_authorization_endpoint"`
	RevocationEndpoint    string   `json:"revocation_endpoint"`
	ResponseModes         []string `json:"response_modes_supported"`
	NamesItself           bool     `json:"authorization_response_iss_parameter_supported"` // RFC 9207
	Supervisor            *struct {
		IdentityProviders string `json:"pinniped_identity_providers_endpoint"`
	} `json:"discovery.supervisor.pinniped.dev/v1alpha1"`
}

// discover reads the issuer's discovery document.
func (l *Login) discover(ctx context.Context) (*provider, error) {
	if !isHTTPS(l.Issuer) {
		return nil, withHint(
			fmt.Errorf("the issuer %q is not an https URL", printable(l.Issuer)),
			"set another one with --issuer",
		)
	}
	p := &provider{login: l}
	p.client = l.client(p)
	found, err := oidc.NewProvider(p.context(ctx), l.Issuer)
	if err != nil {
		return nil, fmt.Errorf("fetching the discovery document of issuer %q: %w", l.Issuer, l.explainDiscovery(err))
	}
	if err := found.Claims(&p.metadata); err != nil {
		return nil, fmt.Errorf("decoding the discovery document of issuer %q: %w", l.Issuer, err)
	}
	for name, endpoint := range map[string]string{
		"authorization_endpoint": p.metadata.AuthorizationEndpoint, "token_endpoint": p.metadata.TokenEndpoint, "jwks_uri": p.metadata.JWKSURI,
		"device_authorization_endpoint": p.metadata.DeviceEndpoint, "revocation_endpoint": p.metadata.RevocationEndpoint,
	} {
		optional := strings.HasPrefix(name, "device") || strings.HasPrefix(name, "revocation")
		if !isHTTPS(endpoint) && (endpoint != "" || !optional) {
			return nil, withHint(
				fmt.Errorf("the %s of issuer %q is %q, which is not an https URL", name, l.Issuer, printable(endpoint)),
				"contact the issuer's administrator: secrets are only sent over TLS",
			)
		}
	}
	p.config = oauth2.Config{ClientID: l.ClientID, Endpoint: found.Endpoint(), Scopes: l.Scopes}
	p.config.Endpoint.AuthStyle = oauth2.AuthStyleInParams // a public client has no secret
	return p, nil
}

func isHTTPS(address string) bool {
	parsed, err := url.Parse(address)
	return err == nil && parsed.Scheme == "https" && parsed.Host != ""
}

func (l *Login) explainDiscovery(err error) error {
	if l.oversized.Load() != nil {
		return l.explain(err)
	}
	if mismatch, ok := errors.AsType[*oidc.IssuerMismatchError](err); ok {
		problem := fmt.Errorf("its discovery document names a different issuer, %q", printable(mismatch.Discovered))
		if hint := TenantHint(mismatch.Discovered); hint != "" {
			return withHint(problem, "%s", hint)
		}
		return withHint(
			problem,
			"recreate the kubeconfig with the issuer's exact URL, including a trailing slash (\"pinniped get "+
				"kubeconfig --oidc-issuer\")",
		)
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return l.explain(err)
	}
	return withHint(
		errors.New(printable(err.Error())),
		"check that %s is a working OpenID Connect issuer",
		l.Issuer,
	)
}

// isSupervisor reports whether the issuer is a Pinniped Supervisor.
func (p *provider) isSupervisor() bool { return p.metadata.Supervisor != nil }

// context gives the libraries our HTTP client.
func (p *provider) context(ctx context.Context) context.Context {
	return oidc.ClientContext(ctx, p.client)
}

// client returns the HTTP client for all requests to the issuer.
func (l *Login) client(p *provider) *http.Client {
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(l.CABundle) > 0 {
		tlsConfig.RootCAs = x509.NewCertPool()
		tlsConfig.RootCAs.AppendCertsFromPEM(l.CABundle)
	}
	return &http.Client{
		Timeout: l.requestTimeout(),
		Transport: &transport{
			base: &http.Transport{
				Proxy:               http.ProxyFromEnvironment,
				TLSClientConfig:     tlsConfig,
				TLSHandshakeTimeout: 10 * time.Second,
				ForceAttemptHTTP2:   true,
			},
			skew: &p.skew, now: l.now, oversized: &l.oversized,
		},
		CheckRedirect: func(request *http.Request, via []*http.Request) error {
			switch first := via[0]; {
			case first.Method != http.MethodGet, len(first.Header.Values(usernameHeader)) > 0:
				return http.ErrUseLastResponse // the request holds a secret: send it nowhere else
			case request.URL.Scheme != "https":
				return fmt.Errorf("redirected to %s, which is not https", printable(request.URL.Redacted()))
			case len(via) > maxRedirects:
				return errors.New("redirected too often")
			}
			return nil
		},
	}
}

// transport limits the size of responses, and measures the clock skew.
type transport struct {
	base http.RoundTripper
	skew *atomic.Int64
	now  func() time.Time
	// oversized stores the URL of a response that was truncated; the libraries do not pass such an error on.
	oversized *atomic.Pointer[url.URL]
}

func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("User-Agent", "pinniped")
	t.oversized.Store(nil)
	response, err := t.base.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		t.skew.Store(int64(t.now().Sub(date)))
	}
	response.Body = &body{http.MaxBytesReader(nil, response.Body, maxBody), func() { t.oversized.Store(request.URL) }}
	return response, nil
}

// body calls oversized when the response is too large.
type body struct {
	io.ReadCloser
	oversized func()
}

func (b *body) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		b.oversized()
	}
	return n, err
}

// verify checks an ID token: its signature with the issuer's current keys, its issuer, audience and times.
func (p *provider) verify(ctx context.Context, raw, audience string) (*sessioncache.IDToken, *oidc.IDToken, error) {
	keys, err := p.keys(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("fetching the keys of issuer %q: %w", p.login.Issuer, err)
	}
	verified, err := oidc.NewVerifier(p.login.Issuer, keys, &oidc.Config{
		ClientID: audience, SupportedSigningAlgs: keyset.Algorithms(),
		SkipExpiryCheck: true, // checked below, with leeway
	}).Verify(ctx, raw)
	switch {
	case err == nil:
	case strings.HasPrefix(err.Error(), "failed to verify signature") && keys.Skips(raw) != nil:
		return nil, nil, withHint(fmt.Errorf("verifying the ID token: %w", keys.Skips(raw)), hintOtherKey)
	default:
		return nil, nil, withHint(
			fmt.Errorf("verifying the ID token: %s", printable(strings.TrimPrefix(err.Error(), "oidc: "))),
			"the issuer returned an invalid token: contact its administrator",
		)
	}
	var claims map[string]any
	if err := verified.Claims(&claims); err != nil {
		return nil, nil, fmt.Errorf("decoding the ID token: %w", err)
	}
	// azp is the client that asked for the token; an exchanged token may have been issued to another one.
	if azp, ok := claims["azp"]; ok && azp != audience && azp != p.login.ClientID {
		return nil, nil, withHint(
			fmt.Errorf("verifying the ID token: it was issued to another client, %q", printable(fmt.Sprint(azp))),
			"the issuer returned an invalid token: contact its administrator",
		)
	}
	if expired := p.login.now().Sub(verified.Expiry); expired > clockLeeway {
		return nil, nil, p.clockHint(
			fmt.Errorf(
				"verifying the ID token: it expired %s ago, at %s",
				expired.Round(time.Second),
				verified.Expiry.UTC().Format(time.RFC3339),
			),
		)
	}
	if notBefore, ok := claims["nbf"].(float64); ok {
		if early := time.Unix(int64(notBefore), 0).Sub(p.login.now()); early > clockLeeway {
			return nil, nil, p.clockHint(
				fmt.Errorf("verifying the ID token: it only becomes valid in %s", early.Round(time.Second)),
			)
		}
	}
	return &sessioncache.IDToken{Token: raw, Expiry: metav1.NewTime(verified.Expiry), Claims: claims}, verified, nil
}

// hintOtherKey is the hint for issuers with keys that Go does not support.
const hintOtherKey = "ask the issuer's administrator to sign tokens with another key: RSA, or EC on P-256, P-384 " +
	"or P-521"

// keys fetches the issuer's keys.
func (p *provider) keys(ctx context.Context) (*keyset.Set, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.metadata.JWKSURI, nil)
	if err != nil {
		return nil, err
	}
	var document json.RawMessage
	if err = p.do(request, &document); err != nil {
		return nil, p.login.explain(err)
	}
	keys, err := keyset.Parse(document)
	if _, ok := errors.AsType[*keyset.SkippedError](err); ok {
		return nil, withHint(err, hintOtherKey)
	}
	if err != nil {
		return nil, withHint(err, "ask the issuer's administrator what is at %s", p.metadata.JWKSURI)
	}
	for _, skipped := range keys.Skipped {
		p.login.debugf("not using %s", skipped)
	}
	return keys, nil
}

// clockHint says which clock is probably wrong.
func (p *provider) clockHint(err error) error {
	skew := time.Duration(p.skew.Load()).Round(time.Second)
	switch {
	case skew > time.Minute:
		return withHint(err, "this computer's clock is %s ahead of the issuer's: correct it", skew)
	case skew < -time.Minute:
		return withHint(err, "this computer's clock is %s behind the issuer's: correct it", -skew)
	}
	return withHint(err, "the issuer returned a token that is not valid now: contact its administrator")
}

// accept verifies the response of the token endpoint and returns its tokens. nonce is empty if the flow has none;
// before is the refreshed session, or nil.
func (p *provider) accept(
	ctx context.Context,
	token *oauth2.Token,
	nonce string,
	before *sessioncache.Tokens,
) (*sessioncache.Tokens, error) {
	tokens := &sessioncache.Tokens{}
	if token.AccessToken != "" {
		tokens.Access = &sessioncache.AccessToken{
			Token:  token.AccessToken,
			Type:   token.TokenType,
			Expiry: metav1.NewTime(token.Expiry),
		}
	}
	if token.RefreshToken != "" {
		tokens.Refresh = &sessioncache.RefreshToken{Token: token.RefreshToken}
	}
	raw, _ := token.Extra("id_token").(string)
	if raw == "" {
		switch {
		case before == nil:
			return nil, withHint(errors.New("the issuer sent no ID token"), "is \"openid\" one of the scopes (--scopes)?")
		case !p.login.needsExchange(before):
			p.login.warn("issuer %s returns no ID token on refresh, so a login is needed whenever the ID token expires: "+
				"ask the issuer's administrator to enable ID tokens on refresh or to extend their lifetime", p.login.Issuer)
			return nil, &refusal{code: "no ID token", description: "refresh returned none"}
		}
		tokens.ID = before.ID // it names the user; the access token is what is used
		return tokens, nil
	}
	id, verified, err := p.verify(ctx, raw, p.login.ClientID)
	if err != nil {
		return nil, err
	}
	if nonce != "" && verified.Nonce != nonce {
		return nil, withHint(errors.New("verifying the ID token: its nonce does not match this login"),
			"it may come from another login, or from an attacker: run the command again")
	}
	if verified.AccessTokenHash != "" && token.AccessToken != "" {
		if err := verified.VerifyAccessToken(token.AccessToken); err != nil {
			return nil, errors.New("verifying the ID token: its at_hash does not match the access token")
		}
	}
	if before != nil && before.ID != nil {
		if subject, ok := before.ID.Claims["sub"].(string); ok && subject != verified.Subject {
			return nil, &refusal{code: "another user", description: "the refreshed token is for another subject"}
		}
	}
	tokens.ID = id
	p.login.warnOverage(id)
	return tokens, nil
}

// names reports whether audience is one of the audiences of an ID token, as clusters check it.
func names(id *sessioncache.IDToken, audience string) bool {
	switch aud := id.Claims["aud"].(type) {
	case string:
		return aud == audience
	case []any:
		return slices.Contains(aud, any(audience))
	}
	return false
}

// UserOf returns the name of the user of a session, from the first suitable claim of the ID token, or "".
func UserOf(tokens *sessioncache.Tokens) string {
	if tokens.ID != nil {
		for _, claim := range []string{"username", "preferred_username", "email", "name", "sub"} {
			if name, ok := tokens.ID.Claims[claim].(string); ok && name != "" {
				return printable(name)
			}
		}
	}
	return ""
}
