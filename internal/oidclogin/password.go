package oidclogin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
)

const (
	usernameHeader = "Pinniped-Username"
	passwordHeader = "Pinniped-Password"

	usernameVariable = "PINNIPED_USERNAME"
	passwordVariable = "PINNIPED_PASSWORD"
)

// logInWithPassword sends name and password to a Supervisor, which returns a code. Other issuers get no password.
func (p *provider) logInWithPassword(ctx context.Context) (*sessioncache.Tokens, error) {
	l := p.login
	if !p.isSupervisor() {
		return nil, withHint(
			fmt.Errorf(
				"issuer %q is not a Pinniped Supervisor, and only Supervisors accept passwords from the command line",
				l.Issuer,
			),
			"log in with a browser: --upstream-identity-provider-flow=browser_authcode",
		)
	}
	username, password, err := l.askPassword(ctx)
	if err != nil {
		return nil, err
	}
	// Nothing listens there: the code is in the response to this request.
	a := p.authorization("http://127.0.0.1:0" + callbackPath)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.address(l), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set(usernameHeader, username)
	request.Header.Set(passwordHeader, password)
	response, err := p.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("sending name and password to issuer %q: %w", l.Issuer, l.explain(err))
	}
	_ = response.Body.Close()
	code, err := p.codeOfRedirect(a, response)
	if err != nil {
		return nil, err
	}
	return p.redeem(ctx, a, code)
}

func (p *provider) codeOfRedirect(a *authorization, response *http.Response) (string, error) {
	issuer := p.login.Issuer
	if response.StatusCode != http.StatusFound && response.StatusCode != http.StatusSeeOther {
		err := fmt.Errorf("logging in to issuer %q: it returned %d instead of a redirect", issuer, response.StatusCode)
		return "", withHint(err, "check --upstream-identity-provider-name; if it is correct, contact the Supervisor's "+
			"administrator")
	}
	location, err := response.Location()
	if err != nil {
		return "", fmt.Errorf("logging in to issuer %q: its response has no location", issuer)
	}
	expected, err := url.Parse(a.config.RedirectURL)
	if err != nil || location.Scheme != expected.Scheme || location.Host != expected.Host ||
		location.Path != expected.Path {
		err := fmt.Errorf(
			"logging in to issuer %q: it redirects to %q, not to the callback address",
			issuer,
			printable(location.Redacted()),
		)
		return "", withHint(err, "the identity provider needs a browser: --upstream-identity-provider-flow=browser_authcode")
	}
	return p.codeFrom(a, location.Query())
}

// askPassword returns name and password from the environment, or prompts for them.
func (l *Login) askPassword(ctx context.Context) (username, password string, err error) {
	if l.Getenv != nil {
		username, password = l.Getenv(usernameVariable), l.Getenv(passwordVariable)
	}
	if (username == "" || password == "") && !l.Terminal.Interactive() {
		return "", "", withHint(errors.New("a name and a password are needed, and there is no terminal to ask for them"),
			"set %s and %s, or run the command in a terminal", usernameVariable, passwordVariable)
	}
	if username == "" {
		if l.UpstreamName != "" {
			l.Terminal.Print("Log in to " + l.UpstreamName + "\n\n")
		}
		if username, err = l.Terminal.ReadLine(ctx, "Username: "); err != nil {
			return "", "", fmt.Errorf("asking for the name: %w", err)
		}
	}
	if password == "" {
		if password, err = l.Terminal.ReadSecret(ctx, "Password: "); err != nil {
			return "", "", fmt.Errorf("asking for the password: %w", err)
		}
	}
	return username, password, nil
}
