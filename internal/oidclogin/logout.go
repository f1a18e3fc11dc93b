package oidclogin

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
)

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
