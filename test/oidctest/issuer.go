// Package oidctest is an OpenID Connect issuer for tests: ory/fosite in this process, behind TLS on loopback.
//
// fosite handles requests for codes and tokens. This package adds what it lacks: discovery, keys, device codes, faults,
// and a Pinniped Supervisor's token exchange and password logins.
package oidctest

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"
	"github.com/ory/fosite"
	"github.com/ory/fosite/compose"
	"github.com/ory/fosite/handler/openid"
	"github.com/ory/fosite/storage"
	"github.com/ory/fosite/token/jwt"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// ClientID is the ID of the only client, which is public.
const ClientID = "pinniped-cli"

// Issuer is the issuer. Set its fields before use.
type Issuer struct {
	URL string
	CA  *certs.CA

	// Supervisor makes it a Pinniped Supervisor, with an identity provider "corporate" of type ldap.
	Supervisor bool
	// FormPost publishes response mode form_post.
	FormPost bool
	// Password is the user's password, if Supervisor is set.
	Password string
	// User is the user who logs in.
	User string
	// IDLifetime is the lifetime of ID tokens; the default is an hour.
	IDLifetime time.Duration
	// Now is the issuer's clock; nil means time.Now.
	Now func() time.Time
	// Metadata overrides fields of the discovery document; a nil value removes a field.
	Metadata map[string]any
	// Fault, if not nil, may respond to a request instead of the issuer, and then returns true.
	Fault func(w http.ResponseWriter, r *http.Request) bool
	// Nonce, if not empty, replaces the nonce of the request in ID tokens.
	Nonce string
	// Claims replace those of ID tokens; a nil value removes one.
	Claims map[string]any
	// NoIDAtRefresh omits the ID token when a session is refreshed.
	NoIDAtRefresh bool
	// AuthorizedParty, if not empty, is the claim "azp" of ID tokens.
	AuthorizedParty string

	http     *httptest.Server
	provider fosite.OAuth2Provider
	store    *storage.MemoryStore

	mu       sync.Mutex
	key      *rsa.PrivateKey
	keyID    string
	devices  map[string]bool // device codes, true if approved
	requests []string        // "METHOD path grant_type"
}

// New starts an issuer.
func New() (*Issuer, error) {
	ca, err := certs.NewCA("issuer's CA", time.Now(), 24*time.Hour)
	if err != nil {
		return nil, err
	}
	serving, err := ca.IssueServing(
		certs.SANs{DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}},
		time.Now(),
		12*time.Hour,
	)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(serving.CertPEM, serving.KeyPEM)
	if err != nil {
		return nil, err
	}
	i := &Issuer{CA: ca, User: "ann", Password: "password123", devices: map[string]bool{}, store: storage.NewMemoryStore()}
	i.store.Clients[ClientID] = &fosite.DefaultResponseModeClient{
		DefaultClient: &fosite.DefaultClient{
			ID: ClientID, Public: true, RedirectURIs: []string{"http://127.0.0.1/callback"},
			GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
			Scopes: []string{"openid", "offline_access", "pinniped:request-audience", "username", "groups"},
		},
		ResponseModes: []fosite.ResponseModeType{
			fosite.ResponseModeDefault,
			fosite.ResponseModeQuery,
			fosite.ResponseModeFormPost,
		},
	}
	if err := i.RotateKeys(); err != nil {
		return nil, err
	}
	i.http = httptest.NewUnstartedServer(http.HandlerFunc(i.serve))
	i.http.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	i.http.Config.ErrorLog = log.New(io.Discard, "", 0)
	i.http.StartTLS()
	i.URL = i.http.URL
	config := &fosite.Config{
		GlobalSecret: []byte("a secret of thirty-two bytes ..."), IDTokenIssuer: i.URL, EnforcePKCEForPublicClients: true,
		AccessTokenLifespan: 5 * time.Minute, RefreshTokenLifespan: 24 * time.Hour,
		ScopeStrategy: fosite.ExactScopeStrategy, SendDebugMessagesToClients: true,
	}
	signingKey := func(context.Context) (any, error) { return i.signingKey(), nil }
	i.provider = compose.Compose(
		config,
		i.store,
		&compose.CommonStrategy{
			CoreStrategy:               compose.NewOAuth2HMACStrategy(config),
			OpenIDConnectTokenStrategy: compose.NewOpenIDConnectStrategy(signingKey, config),
			Signer:                     &jwt.DefaultSigner{GetPrivateKey: signingKey},
		},
		compose.OAuth2AuthorizeExplicitFactory,
		compose.OAuth2RefreshTokenGrantFactory,
		compose.OAuth2TokenRevocationFactory,
		compose.OAuth2TokenIntrospectionFactory,
		compose.OpenIDConnectExplicitFactory,
		compose.OpenIDConnectRefreshFactory,
		compose.OAuth2PKCEFactory,
	)
	return i, nil
}

// Close stops the issuer.
func (i *Issuer) Close() { i.http.Close() }

// RotateKeys replaces the signing key.
func (i *Issuer) RotateKeys() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.key, i.keyID = key, rand.Text()
	return nil
}

// EndSessions revokes all refresh and access tokens issued so far.
func (i *Issuer) EndSessions() {
	fresh := storage.NewMemoryStore()
	i.store.RefreshTokens, i.store.AccessTokens = fresh.RefreshTokens, fresh.AccessTokens
	i.store.RefreshTokenRequestIDs, i.store.AccessTokenRequestIDs = fresh.RefreshTokenRequestIDs, fresh.AccessTokenRequestIDs
}

// Requests returns the received requests, as "METHOD path" or, at the token endpoint, "POST path grant_type".
func (i *Issuer) Requests() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.requests)
}

// Count returns the number of requests that contain text.
func (i *Issuer) Count(text string) int {
	n := 0
	for _, r := range i.Requests() {
		if strings.Contains(r, text) {
			n++
		}
	}
	return n
}

// Accepts reports whether token is an ID token of this issuer for audience, signed with its current key.
func (i *Issuer) Accepts(token, audience string) bool {
	parsed, err := josejwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		return false
	}
	var claims josejwt.Claims
	return parsed.Claims(&i.signingKey().PublicKey, &claims) == nil && claims.Issuer == i.URL &&
		claims.Audience.Contains(audience)
}

func (i *Issuer) signingKey() *rsa.PrivateKey {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.key
}

func (i *Issuer) now() time.Time {
	if i.Now == nil {
		return time.Now()
	}
	return i.Now()
}

func (i *Issuer) serve(w http.ResponseWriter, r *http.Request) {
	entry := r.Method + " " + r.URL.Path
	if r.Method == http.MethodPost {
		_ = r.ParseForm() // fosite reports errors
		entry = strings.TrimSpace(entry + " " + r.PostForm.Get("grant_type"))
	}
	i.mu.Lock()
	i.requests = append(i.requests, entry)
	i.mu.Unlock()
	w.Header().Set("Date", i.now().UTC().Format(http.TimeFormat))
	if i.Fault != nil && i.Fault(w, r) {
		return
	}
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		i.discovery(w)
	case "/jwks":
		i.ServeKeys(w)
	case "/authorize":
		i.authorize(w, r)
	case "/token":
		switch r.PostForm.Get("grant_type") {
		case "urn:ietf:params:oauth:grant-type:token-exchange":
			i.exchange(w, r)
		case "urn:ietf:params:oauth:grant-type:device_code":
			i.deviceToken(w, r)
		default:
			i.token(w, r)
		}
	case "/device":
		i.device(w)
	case "/revoke":
		i.provider.WriteRevocationResponse(r.Context(), w, i.provider.NewRevocationRequest(r.Context(), r))
	case "/identity-providers":
		answer(w, http.StatusOK, map[string]any{"pinniped_identity_providers": []any{
			map[string]any{"name": "corporate", "type": "ldap", "flows": []string{"cli_password", "browser_authcode"}},
		}})
	default:
		http.NotFound(w, r)
	}
}

func (i *Issuer) discovery(w http.ResponseWriter) {
	document := map[string]any{
		"issuer":                                i.URL,
		"authorization_endpoint":                i.URL + "/authorize",
		"token_endpoint":                        i.URL + "/token",
		"jwks_uri":                              i.URL + "/jwks",
		"device_authorization_endpoint":         i.URL + "/device",
		"revocation_endpoint":                   i.URL + "/revoke",
		"id_token_signing_alg_values_supported": []string{"RS256"},
		"response_types_supported":              []string{"code"},
		"subject_types_supported":               []string{"public"},
		"scopes_supported": strings.Fields(
			"openid offline_access username groups pinniped:request-audience",
		),
	}
	if i.FormPost {
		document["response_modes_supported"] = []string{"query", "form_post"}
	}
	if i.Supervisor {
		document["discovery.supervisor.pinniped.dev/v1alpha1"] = map[string]any{
			"pinniped_identity_providers_endpoint": i.URL + "/identity-providers",
		}
	}
	override(document, i.Metadata)
	answer(w, http.StatusOK, document)
}

// ServeKeys writes the issuer's key set.
func (i *Issuer) ServeKeys(w http.ResponseWriter) {
	i.mu.Lock()
	defer i.mu.Unlock()
	answer(
		w,
		http.StatusOK,
		jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &i.key.PublicKey, KeyID: i.keyID, Algorithm: "RS256", Use: "sig"}}},
	)
}

// authorize does not prompt: every browser is the user's. Names and passwords are checked.
func (i *Issuer) authorize(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	request, err := i.provider.NewAuthorizeRequest(ctx, r)
	if err != nil {
		i.provider.WriteAuthorizeError(ctx, w, request, err)
		return
	}
	if name := r.Header.Get("Pinniped-Username"); name != "" &&
		(!i.Supervisor || name != i.User || r.Header.Get("Pinniped-Password") != i.Password) {
		i.provider.WriteAuthorizeError(ctx, w, request,
			fosite.ErrAccessDenied.WithHint("Username/password not accepted by LDAP provider."))
		return
	}
	for _, scope := range request.GetRequestedScopes() {
		request.GrantScope(scope)
	}
	response, err := i.provider.NewAuthorizeResponse(ctx, request, i.session(r.Form.Get("nonce")))
	if err != nil {
		i.provider.WriteAuthorizeError(ctx, w, request, err)
		return
	}
	i.provider.WriteAuthorizeResponse(ctx, w, request, response)
}

func (i *Issuer) session(nonce string) *openid.DefaultSession {
	session := openid.NewDefaultSession()
	session.Subject = "subject-of-" + i.User
	now := time.Now().UTC()
	session.Claims = &jwt.IDTokenClaims{
		Subject: session.Subject, Nonce: nonce, RequestedAt: now, IssuedAt: now, AuthTime: now,
		ExpiresAt: now.Add(cmp.Or(i.IDLifetime, time.Hour)),
		Extra:     map[string]any{"username": i.User, "groups": []string{"developers"}},
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	session.Headers = &jwt.Headers{Extra: map[string]any{"kid": i.keyID}}
	return session
}

func (i *Issuer) token(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	request, err := i.provider.NewAccessRequest(ctx, r, openid.NewDefaultSession())
	if err != nil {
		i.provider.WriteAccessError(ctx, w, request, err)
		return
	}
	if session, ok := request.GetSession().(*openid.DefaultSession); ok {
		fresh := i.session(session.Claims.Nonce)
		session.Claims.IssuedAt, session.Claims.ExpiresAt = fresh.Claims.IssuedAt, fresh.Claims.ExpiresAt
		session.Headers = fresh.Headers
	}
	response, err := i.provider.NewAccessResponse(ctx, request)
	if err != nil {
		i.provider.WriteAccessError(ctx, w, request, err)
		return
	}
	if _, ok := response.GetExtra("id_token").(string); ok &&
		(i.Now != nil || i.Nonce != "" || i.AuthorizedParty != "" || i.Claims != nil) {
		// fosite uses the computer's clock, and only issues valid tokens.
		nonce := i.Nonce
		if session, ok := request.GetSession().(*openid.DefaultSession); ok && nonce == "" {
			nonce = session.Claims.Nonce
		}
		token, err := i.sign(ClientID, nonce)
		if err != nil {
			problem(w, "server_error", err.Error())
			return
		}
		response.SetExtra("id_token", token)
	}
	if i.NoIDAtRefresh && r.PostForm.Get("grant_type") == "refresh_token" {
		response.SetExtra("id_token", nil)
	}
	i.provider.WriteAccessResponse(ctx, w, request, response)
}

// exchange handles the Supervisor's token exchange.
func (i *Issuer) exchange(w http.ResponseWriter, r *http.Request) {
	form := r.PostForm
	if form.Get("requested_token_type") != "urn:ietf:params:oauth:token-type:jwt" ||
		form.Get("subject_token_type") != "urn:ietf:params:oauth:token-type:access_token" {
		problem(w, "invalid_request", "wrong token type")
		return
	}
	if _, _, err := i.provider.IntrospectToken(r.Context(), form.Get("subject_token"), fosite.AccessToken,
		openid.NewDefaultSession(), "pinniped:request-audience"); err != nil {
		problem(w, "invalid_grant", "the subject token is not valid")
		return
	}
	token, err := i.sign(form.Get("audience"), "")
	if err != nil {
		problem(w, "server_error", err.Error())
		return
	}
	answer(w, http.StatusOK, map[string]any{
		"access_token": token, "issued_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_type": "N_A",
	})
}

// sign creates an ID token without fosite.
func (i *Issuer) sign(audience, nonce string) (string, error) {
	i.mu.Lock()
	key := jose.JSONWebKey{Key: i.key, KeyID: i.keyID}
	i.mu.Unlock()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, nil)
	if err != nil {
		return "", err
	}
	now := i.now()
	claims := map[string]any{
		"iss": i.URL, "aud": audience, "sub": "subject-of-" + i.User, "username": i.User,
		"iat": now.Unix(), "exp": now.Add(cmp.Or(i.IDLifetime, time.Hour)).Unix(),
	}
	if nonce != "" {
		claims["nonce"] = nonce
	}
	if i.AuthorizedParty != "" {
		claims["azp"] = i.AuthorizedParty
	}
	override(claims, i.Claims)
	return josejwt.Signed(signer).Claims(claims).Serialize()
}

// override replaces fields; a nil value removes one.
func override(fields, by map[string]any) {
	maps.Copy(fields, by)
	maps.DeleteFunc(fields, func(_ string, value any) bool { return value == nil })
}

func answer(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value) // the client is gone if this fails
}

func problem(w http.ResponseWriter, code, description string) {
	answer(w, http.StatusBadRequest, map[string]string{"error": code, "error_description": description})
}

// ApproveDevices approves every pending device code, as the user.
func (i *Issuer) ApproveDevices() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for code := range i.devices {
		i.devices[code] = true
	}
}

func (i *Issuer) device(w http.ResponseWriter) {
	code := rand.Text()
	i.mu.Lock()
	i.devices[code] = false
	i.mu.Unlock()
	answer(w, http.StatusOK, map[string]any{
		"device_code": code, "user_code": "WDJB-MJHT", "verification_uri": i.URL + "/enter",
		"verification_uri_complete": i.URL + "/enter?user_code=WDJB-MJHT", "expires_in": 60, "interval": 1,
	})
}

func (i *Issuer) deviceToken(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	approved, known := i.devices[r.PostForm.Get("device_code")]
	i.mu.Unlock()
	switch {
	case !known:
		problem(w, "expired_token", "")
		return
	case !approved:
		problem(w, "authorization_pending", "")
		return
	}
	token, err := i.sign(ClientID, "")
	if err != nil {
		problem(w, "server_error", err.Error())
		return
	}
	answer(
		w,
		http.StatusOK,
		map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "expires_in": 300, "id_token": token},
	)
}

// Browse is a user's browser: it opens address, follows redirects, submits forms, and returns the text of the last
// page. It trusts the CA bundle (PEM).
func Browse(ctx context.Context, caBundle []byte, address string) (string, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(caBundle)
	client := &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		},
		Timeout: 30 * time.Second,
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	text, err := fetch(client, request)
	if err != nil {
		return "", err
	}
	action := regexp.MustCompile(`<form method="post" action="([^"]*)">`).FindStringSubmatch(text)
	if action == nil {
		return text, nil
	}
	form := url.Values{}
	for _, field := range regexp.MustCompile(`name="([^"]*)" value="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		form.Set(field[1], field[2])
	}
	request, err = http.NewRequestWithContext(ctx, http.MethodPost, action[1], strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return fetch(client, request)
}

func fetch(client *http.Client, request *http.Request) (string, error) {
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}
