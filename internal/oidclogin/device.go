package oidclogin

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/oauth2"

	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
)

// logInWithDeviceCode lets the user log in with a browser on any device (RFC 8628).
func (p *provider) logInWithDeviceCode(ctx context.Context) (*sessioncache.Tokens, error) {
	l := p.login
	if p.metadata.DeviceEndpoint == "" {
		return nil, withHint(
			fmt.Errorf("issuer %q does not support the device flow", l.Issuer),
			"log in with a browser (--upstream-identity-provider-flow=browser_authcode); if this computer "+
				"has none, add --skip-browser",
		)
	}
	verifier := oauth2.GenerateVerifier() // PKCE: some issuers require it, others ignore it
	device, err := p.config.DeviceAuth(p.context(ctx), oauth2.S256ChallengeOption(verifier))
	if err != nil {
		return nil, fmt.Errorf("requesting a device code from %q: %w", l.Issuer, l.explain(err))
	}
	if device.DeviceCode == "" || device.UserCode == "" || device.VerificationURI == "" {
		return nil, withHint(
			fmt.Errorf("issuer %q returned no device code", l.Issuer),
			"contact the issuer's administrator",
		)
	}
	if device.Interval < 1 {
		device.Interval = 5 // the default of the RFC; a negative one would panic
	}
	for _, link := range []string{device.VerificationURI, device.VerificationURIComplete} {
		if link != "" && (!isHTTPS(link) || printable(link) != link) {
			return nil, withHint(
				fmt.Errorf("issuer %q sends users to %q, which is not an https URL", l.Issuer, printable(link)),
				"contact the issuer's administrator",
			)
		}
	}
	text := "Log in by visiting this link, on any device:\n\n    " + device.VerificationURI + "\n\nand enter this " +
		"code:\n\n    " + printable(device.UserCode) + "\n\n"
	if device.VerificationURIComplete != "" {
		text += "or visit this link, which includes the code:\n\n    " + device.VerificationURIComplete + "\n\n"
	}
	l.Terminal.Print(text)
	token, err := p.config.DeviceAccessToken(p.context(ctx), device, oauth2.VerifierOption(verifier))
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = &refusal{code: "expired_token", description: "the device code has expired"}
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, over(ctx, ctx.Err())
		}
		return nil, fmt.Errorf("waiting for the login at issuer %q: %w", l.Issuer, l.explain(err))
	}
	return p.accept(ctx, token, "", nil)
}
