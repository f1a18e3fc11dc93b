package oidclogin

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
)

func TestNeedsExchange(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		aud  any
		want bool
	}{
		"it alone":       {aud: "api"},
		"a list of it":   {aud: []any{"api"}},
		"it and another": {aud: []any{"my-client", "api"}},
		"another":        {aud: "my-client", want: true},
		"others":         {aud: []any{"my-client", "b"}, want: true},
		"none":           {want: true},
		"no text":        {aud: []any{1.0}, want: true},
	} {
		tokens := &sessioncache.Tokens{ID: &sessioncache.IDToken{Claims: map[string]any{"aud": test.aud}}}
		if got := (&Login{RequestAudience: "api"}).needsExchange(tokens); got != test.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// TestHints checks what the hints of errors say.
func TestHints(t *testing.T) {
	t.Parallel()
	l := &Login{Issuer: "https://issuer.example.com"}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"a client secret is wanted": {
			l.explain(&refusal{code: "invalid_request", description: "client_secret is missing."}), "register a public client",
		},
		"a client that is not registered": {l.explain(&refusal{code: "invalid_client"}), "register the client"},
		"a certificate for another name": {
			l.explain(&url.Error{Err: &tls.CertificateVerificationError{Err: x509.HostnameError{
				Certificate: &x509.Certificate{}, Host: "issuer.example.com",
			}}}), "a certificate for issuer.example.com",
		},
		"a certificate that is over": {
			l.explain(&url.Error{Err: &tls.CertificateVerificationError{
				Err: x509.CertificateInvalidError{Cert: &x509.Certificate{}, Reason: x509.Expired},
			}}), "this computer's clock",
		},
		"an address that cannot be reached": {l.explain(&url.Error{Err: errors.New("connection refused")}), "HTTPS_PROXY"},
		"a scope that is not given":         {l.explain(&refusal{code: "invalid_scope"}), "--oidc-scopes"},
		"a login that was cancelled":        {l.explain(&refusal{code: "access_denied"}), "run the command again"},
		"a code that is over":               {l.explain(&refusal{code: "expired_token"}), "for a new one"},
		"a code that was used":              {l.explain(&refusal{code: "invalid_grant"}), "run the command again"},
		"an issuer with a problem":          {l.explain(&refusal{code: "server_error"}), "try again later"},
		"something that wants a browser":    {l.explain(&refusal{code: "interaction_required"}), "--skip-browser"},
		"an issuer of another name":         {l.explainDiscovery(&oidc.IssuerMismatchError{Discovered: "https://x/"}), "a trailing slash"},
		"a certificate of another CA": {
			l.explain(&url.Error{Err: &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}}), "--ca-bundle",
		},
		"an address for all tenants": {
			l.explainDiscovery(&oidc.IssuerMismatchError{Discovered: "https://login.microsoftonline.com/{tenantid}/v2.0"}),
			"TENANT-ID",
		},
	} {
		hint, ok := test.err.(interface{ Hint() string })
		if !ok || !strings.Contains(hint.Hint(), test.want) {
			t.Errorf("%s: %v", name, test.err)
		}
	}
}
