package oidclogin

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	"golang.org/x/oauth2"
)

// hinted is an error with a hint; the CLI prints the hint below the error.
type hinted struct {
	error
	hint string
}

func (e *hinted) Unwrap() error { return e.error }

// Hint returns the hint.
func (e *hinted) Hint() string { return e.hint }

func withHint(err error, format string, args ...any) error {
	return &hinted{error: err, hint: fmt.Sprintf(format, args...)}
}

// refusal is an error response of the issuer that a retry would not change. A new login may help.
type refusal struct {
	code, description string
	status            int // HTTP status; zero if the refusal came through the browser
}

func (r *refusal) Error() string {
	text := r.code
	if text == "" {
		text = fmt.Sprintf("returned %d %s", r.status, http.StatusText(r.status))
	}
	if r.description != "" {
		text += ": " + r.description
	}
	return text
}

// Hint returns a hint for the usual refusals.
func (r *refusal) Hint() string {
	if strings.Contains(r.description, "client_secret") {
		return "the issuer needs a client secret, which a program on users' computers cannot keep secret: ask " +
			"the issuer's administrator to register a public client, or use an issuer that supports public clients, such " +
			"as a Pinniped Supervisor, Dex or Keycloak"
	}
	switch r.code {
	case "invalid_client", "unauthorized_client":
		return "the issuer does not allow this login for the client: ask its administrator to register the client " +
			"of --client-id as a public client"
	case "invalid_scope":
		return "the issuer rejects one of the scopes: choose others with --scopes (\"pinniped get kubeconfig " +
			"--oidc-scopes\")"
	case "access_denied":
		return "the login was cancelled, or the issuer does not let this user in: run the command again to try once more"
	case "expired_token":
		return "the code was not entered in time: run the command again for a new one"
	case "login_required", "interaction_required", "consent_required":
		return "the issuer needs the browser: run the command again without --skip-browser, or open the printed link"
	case "invalid_grant":
		return "the login took too long, or its code was already used: run the command again"
	case "server_error", "temporarily_unavailable":
		return "the issuer has a problem: try again later, or contact its administrator"
	}
	return "contact the issuer's administrator, or ask for a new kubeconfig"
}

// IsRefusal reports whether the issuer, or the user, refused the login. An immediate retry would ask the user again.
func IsRefusal(err error) bool {
	_, ok := asRefusal(err)
	return ok
}

// asRefusal returns err as a refusal if the issuer refused the request. Temporary errors of the issuer are not
// refusals.
func asRefusal(err error) (*refusal, bool) {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r, true
	}
	retrieve, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok {
		return nil, false
	}
	status := 0
	if retrieve.Response != nil {
		status = retrieve.Response.StatusCode
	}
	if status < 400 || status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout {
		return nil, false
	}
	return &refusal{
		code:        printable(retrieve.ErrorCode),
		description: printable(retrieve.ErrorDescription),
		status:      status,
	}, true
}

// explain removes secrets (response bodies) and our own URL from err, and adds a hint.
func (l *Login) explain(err error) error {
	if from := l.oversized.Load(); from != nil {
		return withHint(
			fmt.Errorf("the response of %s is larger than %d bytes", printable(from.Redacted()), maxBody),
			"ask the issuer's administrator to send this client less, for example fewer groups",
		)
	}
	if refused, ok := asRefusal(err); ok {
		return refused
	}
	if retrieve, ok := errors.AsType[*oauth2.RetrieveError](err); ok && retrieve.Response != nil {
		status := retrieve.Response.StatusCode
		text := fmt.Errorf("the issuer returned %d %s", status, http.StatusText(status))
		if retrieve.ErrorCode != "" {
			text = fmt.Errorf(
				"the issuer returned %d: %s: %s",
				status,
				printable(retrieve.ErrorCode),
				printable(retrieve.ErrorDescription),
			)
		}
		if status >= 300 && status < 400 {
			return withHint(text, "something in front of the issuer redirects requests; secrets are not sent to "+
				"the new address")
		}
		return withHint(text, "the issuer has a problem: try again later, or contact its administrator")
	}
	if urlErr, ok := errors.AsType[*url.Error](err); ok {
		err = urlErr.Err
		if urlErr.Timeout() {
			err = fmt.Errorf("no response within %s", l.requestTimeout())
		}
	} else {
		return err
	}
	if hint := CertificateHint(err, "pass the issuer's CA bundle with --ca-bundle, or ask for a new kubeconfig "+
		"(\"pinniped get kubeconfig --oidc-ca-bundle\")"); hint != "" {
		return withHint(err, "%s", hint)
	}
	return withHint(err, "check whether %s is reachable from here, and whether you need a proxy (HTTPS_PROXY)", l.Issuer)
}

// CertificateHint returns a hint for err if it says that the issuer's certificate is not accepted, and "" otherwise.
// The hint for an unknown CA is otherCA.
func CertificateHint(err error, otherCA string) string {
	if other, ok := errors.AsType[x509.HostnameError](err); ok {
		return "the issuer's certificate is for other names: its administrator must get a certificate for " + printable(
			other.Host,
		)
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return "the issuer's certificate is expired or not yet valid: contact its administrator, unless this " +
			"computer's clock is wrong"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the issuer's certificate is from an untrusted CA: " + otherCA
	}
	return ""
}

// TenantHint returns a hint if discovered, the issuer's own name for itself, is a placeholder for all tenants of Entra
// ID, and "" otherwise.
func TenantHint(discovered string) string {
	if !strings.Contains(discovered, "{tenantid}") {
		return ""
	}
	return "this address is for all tenants, but each token names one tenant: use your tenant's address, " +
		"\"pinniped get kubeconfig --oidc-issuer https://login.microsoftonline.com/TENANT-ID/v2.0\""
}

// printable makes text from the issuer safe to print: one line, no control characters, bounded length.
func printable(text string) string {
	const most = 300
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return -1
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}
