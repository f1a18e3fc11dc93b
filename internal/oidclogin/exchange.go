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
