package oidclogin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/oauth2"

	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
)

const (
	callbackPath = "/callback"

	// Parameters that select the identity provider of a Supervisor.
	upstreamNameParameter = "pinniped_idp_name"
	upstreamTypeParameter = "pinniped_idp_type"
)

// authorization is an authorization request and the values to check its response against.
type authorization struct {
	config   oauth2.Config // with the redirect URL
	state    string
	nonce    string
	verifier string // PKCE code verifier
}

func (p *provider) authorization(redirectURL string) *authorization {
	a := &authorization{config: p.config, state: rand.Text(), nonce: rand.Text(), verifier: oauth2.GenerateVerifier()}
	a.config.RedirectURL = redirectURL
	return a
}

// address returns the URL of the authorization request.
func (a *authorization) address(l *Login, extra ...oauth2.AuthCodeOption) string {
	options := append([]oauth2.AuthCodeOption{
		oauth2.AccessTypeOffline, oauth2.SetAuthURLParam("nonce", a.nonce), oauth2.S256ChallengeOption(a.verifier),
	}, extra...)
	if l.UpstreamName != "" {
		options = append(
			options,
			oauth2.SetAuthURLParam(upstreamNameParameter, l.UpstreamName),
			oauth2.SetAuthURLParam(upstreamTypeParameter, l.UpstreamType),
		)
	}
	return a.config.AuthCodeURL(a.state, options...)
}

// redeem exchanges the code for tokens. It outlives an interrupted command, because the user has already logged in.
func (p *provider) redeem(ctx context.Context, a *authorization, code string) (*sessioncache.Tokens, error) {
	ctx, done := outlive(ctx)
	defer done()
	token, err := a.config.Exchange(p.context(ctx), code, oauth2.VerifierOption(a.verifier))
	if err != nil {
		return nil, fmt.Errorf("exchanging the authorization code at issuer %q: %w", p.login.Issuer, p.login.explain(err))
	}
	return p.accept(ctx, token, a.nonce, nil)
}

// codeFrom returns the code in the issuer's response to the authorization request.
func (p *provider) codeFrom(a *authorization, answer url.Values) (string, error) {
	switch {
	case answer.Get("state") != a.state:
		return "", errNotOurs
	case p.metadata.NamesItself && answer.Get("iss") == "", answer.Get("iss") != "" && answer.Get("iss") != p.login.Issuer:
		return "", withHint(
			fmt.Errorf("the response comes from issuer %q, not from %q", printable(answer.Get("iss")), p.login.Issuer),
			"this may be a mix-up attack: run the command again, and open only the link that it prints",
		)
	case answer.Get("error") != "":
		return "", fmt.Errorf("logging in to issuer %q: %w", p.login.Issuer,
			&refusal{code: printable(answer.Get("error")), description: printable(answer.Get("error_description"))})
	case answer.Get("code") == "":
		return "", fmt.Errorf("logging in to issuer %q: its response has no code", p.login.Issuer)
	}
	return answer.Get("code"), nil
}

// errNotOurs means that a response is forged or belongs to another authorization request.
var errNotOurs = errors.New("this is not the response to the pending login")

// logInWithBrowser opens the issuer's login page in a browser. The browser sends the code to a listener on loopback, or
// the user pastes it.
func (p *provider) logInWithBrowser(ctx context.Context, before *sessioncache.Tokens) (*sessioncache.Tokens, error) {
	l := p.login
	listener, listenErr := l.listen(ctx)
	if listener == nil && !l.Terminal.Interactive() {
		if p.metadata.DeviceEndpoint != "" {
			if l.ListenPort != 0 && !l.SkipListen {
				l.Terminal.Print(fmt.Sprintf("Cannot listen on localhost (%v): logging in with a device code.\n", listenErr))
			}
			l.debugf("neither a listener nor a terminal to paste in: logging in with a device code")
			return p.logInWithDeviceCode(ctx)
		}
		return nil, withHint(fmt.Errorf("cannot receive the issuer's response: %w", listenErr),
			"run the command in a terminal, or let it listen on localhost (without --skip-listen, with a free --listen-port)")
	}
	if listener == nil && !l.SkipListen {
		l.Terminal.Print(fmt.Sprintf("Cannot listen on localhost (%v): paste the code instead.\n", listenErr))
	}
	redirect := url.URL{Scheme: "http", Host: "127.0.0.1:0", Path: callbackPath} // nothing listens on port 0
	if listener != nil {
		redirect.Host = listener.Addr().String()
	}
	a := p.authorization(redirect.String())
	var options []oauth2.AuthCodeOption
	if slices.Contains(p.metadata.ResponseModes, "form_post") && (listener != nil || p.isSupervisor()) {
		// form_post keeps the code out of the browser's history. Without a listener, only a Supervisor's page shows the
		// code.
		options = append(options, oauth2.SetAuthURLParam("response_mode", "form_post"))
	}
	if before != nil && before.Refresh == nil && slices.Contains(l.Scopes, "offline_access") && !p.isSupervisor() {
		// OpenID Connect Core, section 11: an issuer may require prompt=consent for a refresh token. With others it
		// annoys the user or fails, so send it only if the last login returned no refresh token.
		options = append(options, oauth2.SetAuthURLParam("prompt", "consent"))
	}
	address := a.address(l, options...)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer)
	if listener != nil {
		defer p.serve(ctx, listener, a, answers)()
	}
	if !l.Quiet || l.SkipBrowser {
		p.showLink(ctx, a, address, listener != nil, answers)
	}
	opened := make(chan error, 1)
	go func() { opened <- l.openBrowser(ctx, address) }() // may block while the browser is open
	for {
		select {
		case <-ctx.Done():
			return nil, over(ctx, ctx.Err())
		case err := <-opened:
			if err == nil || ctx.Err() != nil {
				continue
			}
			if l.Quiet {
				p.showLink(ctx, a, address, listener != nil, answers)
			}
			l.Terminal.Print(fmt.Sprintf("No browser could be started (%s): open %s\n\n", printable(err.Error()), address))
			if p.metadata.DeviceEndpoint != "" {
				l.Terminal.Print("This issuer also lets you log in on another device: stop this command, set\n" +
					"PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW=device_code, and run it again.\n\n")
			}
		case got := <-answers:
			return p.conclude(ctx, a, got)
		}
	}
}

// showLink prints the link, and lets the user paste the code.
func (p *provider) showLink(
	ctx context.Context,
	a *authorization,
	address string,
	listening bool,
	answers chan<- answer,
) {
	terminal := p.login.Terminal
	terminal.Print("Log in by visiting this link:\n\n    " + address + "\n\n")
	if terminal.Interactive() {
		go p.readPasted(ctx, a, listening, answers)
	}
}

// conclude exchanges the code for tokens, and shows the result in the browser.
func (p *provider) conclude(ctx context.Context, a *authorization, got answer) (*sessioncache.Tokens, error) {
	var tokens *sessioncache.Tokens
	err := got.err
	if err == nil {
		tokens, err = p.redeem(ctx, a, got.code)
	}
	if err != nil {
		got.show(page{problem: err})
		return nil, err
	}
	got.show(page{user: UserOf(tokens), cluster: p.login.Cluster, issuer: p.login.Issuer})
	return tokens, nil
}

// listen opens the listener for the redirect. The error says why there is none: --skip-listen, or no port is free.
func (l *Login) listen(ctx context.Context) (net.Listener, error) {
	if l.SkipListen {
		return nil, errors.New("there is no listener (--skip-listen)")
	}
	var config net.ListenConfig
	port := strconv.Itoa(int(l.ListenPort))
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if errors.Is(err, syscall.EADDRINUSE) { // do not use another address: the issuer redirects to this one
		return nil, fmt.Errorf("another program uses port %s (--listen-port): %w", port, err)
	}
	if err != nil {
		if six, errSix := config.Listen(ctx, "tcp", net.JoinHostPort("::1", port)); errSix == nil {
			return six, nil
		}
	}
	return listener, err
}

// openBrowser opens the browser, unless SkipBrowser is set, and returns why that failed, as far as it can tell.
func (l *Login) openBrowser(ctx context.Context, address string) error {
	if l.SkipBrowser || l.OpenBrowser == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return l.OpenBrowser(ctx, address)
}

// readPasted waits until the user pastes the code, or the redirect address that the browser could not open.
func (p *provider) readPasted(ctx context.Context, a *authorization, optional bool, answers chan<- answer) {
	prompt := "    Paste your authorization code, or the address that the browser cannot open: "
	if optional {
		prompt = "    Optionally, paste your authorization code: "
	}
	for {
		line, err := p.login.Terminal.ReadLine(ctx, prompt)
		if err != nil {
			if !optional && ctx.Err() == nil {
				deliver(
					ctx,
					answers,
					answer{err: withHint(fmt.Errorf("reading the authorization code: %w", err), "run the command in a terminal")},
				)
			}
			return
		}
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if pasted, err := url.Parse(line); err == nil && (pasted.Scheme == "http" || pasted.Scheme == "https") &&
			pasted.Query().Has("state") {
			code, err := p.codeFrom(a, pasted.Query())
			if errors.Is(err, errNotOurs) {
				p.login.Terminal.Print("That address belongs to another login.\n")
				continue
			}
			deliver(ctx, answers, answer{code: code, err: err})
			return
		}
		deliver(ctx, answers, answer{code: line})
		return
	}
}

// answer is the code that the listener or the user received, or an error.
type answer struct {
	code string
	err  error
	// page, if not nil, receives the page to show in the browser.
	page chan<- page
}

func (a answer) show(result page) {
	if a.page != nil {
		a.page <- result
	}
}

func deliver(ctx context.Context, answers chan<- answer, one answer) {
	select {
	case answers <- one:
	case <-ctx.Done():
	}
}
