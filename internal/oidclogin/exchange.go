package oidclogin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
)

const (
	grantTypeExchange    = "urn:ietf:params:oauth:grant-type:token-exchange"
	tokenTypeAccessToken = "urn:ietf:params:oauth:token-type:access_token"
	tokenTypeJWT         = "urn:ietf:params:oauth:token-type:jwt"
)

// exchange gets a token for RequestAudience by token exchange (RFC 8693).
func (p *provider) exchange(ctx context.Context, tokens *sessioncache.Tokens) (*Token, error) {
	l := p.login
	if tokens.Access == nil || tokens.Access.Token == "" {
		return nil, errors.New("there is no access token to exchange")
	}
	l.debugf("requesting a token for audience %q", l.RequestAudience)
	var got struct {
		Token      string `json:"access_token"`
		Type       string `json:"token_type"`
		IssuedType string `json:"issued_token_type"`
	}
	err := p.postForm(ctx, p.metadata.TokenEndpoint, url.Values{
		"grant_type":           {grantTypeExchange},
		"client_id":            {l.ClientID},
		"audience":             {l.RequestAudience},
		"subject_token":        {tokens.Access.Token},
		"subject_token_type":   {tokenTypeAccessToken},
		"requested_token_type": {tokenTypeJWT},
	}, &got)
	switch {
	case err != nil:
	case !strings.EqualFold(got.Type, "N_A"):
		err = fmt.Errorf("got a token of token_type %q, not N_A", printable(got.Type))
	case got.IssuedType != tokenTypeJWT:
		err = fmt.Errorf("got a token of issued_token_type %q, not %s", printable(got.IssuedType), tokenTypeJWT)
	}
	if err != nil {
		return nil, l.explain(err)
	}
	id, _, err := p.verify(ctx, got.Token, l.RequestAudience)
	if err != nil {
		return nil, err
	}
	return &Token{Raw: id.Token, Expiry: id.Expiry.Time}, nil
}

// postForm posts a form to an endpoint of the issuer, and decodes the response into into, unless it is nil. An error
// response is a *refusal.
func (p *provider) postForm(ctx context.Context, endpoint string, form url.Values, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return p.do(request, into)
}

// do sends a request, and decodes the response as postForm does.
func (p *provider) do(request *http.Request, into any) error {
	request.Header.Set("Accept", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body) // bounded by the transport
	if err != nil {
		return fmt.Errorf("reading the response: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var problem struct {
			Code        string `json:"error"`
			Description string `json:"error_description"`
		}
		_ = json.Unmarshal(body, &problem) // a response that is not JSON still has a status code
		refused := &refusal{
			code:        printable(problem.Code),
			description: printable(problem.Description),
			status:      response.StatusCode,
		}
		if status := response.StatusCode; status >= 400 && status < 500 && status != http.StatusTooManyRequests {
			return refused
		}
		return withHint(errors.New(refused.Error()), "the issuer has a problem: try again later, or contact its "+
			"administrator")
	}
	if into != nil && json.Unmarshal(body, into) != nil {
		return errors.New("the response is not the expected JSON")
	}
	return nil
}

// Revocation is the result of revoking the tokens of a session at the issuer.
type Revocation string

// The results of Revoke.
const (
	Revoked     Revocation = "revoked"
	NotOffered  Revocation = "not offered" // the issuer has no revocation endpoint
	NothingToDo Revocation = "nothing to revoke"
)

// Revoke revokes the tokens at the issuer (RFC 7009), if it has a revocation endpoint. Login needs Issuer, ClientID and
// the connection fields.
func (l *Login) Revoke(ctx context.Context, tokens *sessioncache.Tokens) (Revocation, error) {
	type token struct{ value, hint string }
	var all []token
	if tokens.Refresh != nil && tokens.Refresh.Token != "" {
		all = append(all, token{tokens.Refresh.Token, "refresh_token"})
	}
	if tokens.Access != nil && tokens.Access.Token != "" &&
		(tokens.Access.Expiry.IsZero() || tokens.Access.Expiry.After(l.now())) {
		all = append(all, token{tokens.Access.Token, "access_token"})
	}
	if len(all) == 0 {
		return NothingToDo, nil
	}
	p, err := l.discover(ctx)
	if err != nil {
		return "", err
	}
	defer p.client.CloseIdleConnections()
	if p.metadata.RevocationEndpoint == "" {
		return NotOffered, nil
	}
	var problems []error
	for _, one := range all {
		err := p.postForm(ctx, p.metadata.RevocationEndpoint, url.Values{
			"token": {one.value}, "token_type_hint": {one.hint}, "client_id": {l.ClientID},
		}, nil)
		if refused, ok := asRefusal(err); ok && refused.code == "unsupported_token_type" {
			continue // RFC 7009, section 2.2.1: issuers must support only refresh tokens
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("revoking the %s at issuer %q: %w", one.hint, l.Issuer, l.explain(err)))
		}
	}
	return Revoked, errors.Join(problems...)
}
