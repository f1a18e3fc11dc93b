package jwtauthenticator

import (
	"fmt"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/controller/authenticators"
)

// The condition types of this kind only. Each requires those before it: TLS, issuer, discovery, JWKS URL, keys,
// authenticator.
const (
	typeIssuer    = "IssuerURLValid"
	typeDiscovery = "DiscoveryURLValid"
	typeKeysURL   = "JWKSURLValid"
	typeKeys      = "JWKSFetchValid"
)

const (
	reasonIssuer          = "InvalidIssuerURL"
	reasonIssuerScheme    = "InvalidIssuerURLScheme"
	reasonIssuerWellKnown = "InvalidIssuerURLContainsWellKnownEndpoint"
	reasonIssuerQuery     = "InvalidIssuerURLContainsQueryParams"
	reasonIssuerFragment  = "InvalidIssuerURLContainsFragment"
	reasonDiscovery       = "InvalidDiscoveryProbe"
	reasonKeysURL         = "InvalidProviderJWKSURL"
	reasonKeysURLScheme   = "InvalidProviderJWKSURLScheme"
	reasonKeys            = "InvalidCouldNotFetchJWKS"
	reasonAuthenticator   = "InvalidAuthenticator"
	messageIssuer         = "issuer is a valid URL"
	messageDiscovery      = "discovery performed successfully"
	messageKeysURL        = "jwks_uri is a valid URL"
	messageKeys           = "successfully fetched jwks"
)

// checkIssuer says whether text is a valid issuer URL.
func checkIssuer(text string) metav1.Condition {
	const wellKnown = "/.well-known/openid-configuration"
	issuer, err := url.Parse(text)
	if err != nil {
		return authenticators.Bad(
			typeIssuer,
			reasonIssuer,
			"spec.issuer URL is invalid: "+authenticators.DescribeURLError(err),
		)
	}
	if issuer.User != nil {
		return authenticators.Bad(
			typeIssuer,
			reasonIssuer,
			"spec.issuer URL is invalid: it contains a username or a password",
		)
	}
	refuse := func(reason, why string) metav1.Condition {
		return authenticators.Bad(typeIssuer, reason, fmt.Sprintf("spec.issuer %s %s", text, why))
	}
	switch {
	case issuer.Scheme != "https":
		return refuse(reasonIssuerScheme, "has invalid scheme, require 'https'")
	case issuer.Hostname() == "":
		return authenticators.Bad(typeIssuer, reasonIssuer, "spec.issuer URL is invalid: it has no host")
	case strings.HasSuffix(issuer.Path, wellKnown):
		return refuse(reasonIssuerWellKnown, "cannot include path '"+wellKnown+"'")
	case issuer.RawQuery != "" || issuer.ForceQuery:
		return refuse(reasonIssuerQuery, "cannot include query params")
	case issuer.Fragment != "":
		return refuse(reasonIssuerFragment, "cannot include fragment")
	}
	return authenticators.Good(typeIssuer, messageIssuer)
}

// checkKeysURL says whether text is a valid URL of the issuer's keys.
func checkKeysURL(text string) metav1.Condition {
	if text == "" {
		return authenticators.Bad(typeKeysURL, reasonKeysURL, "the issuer's discovery document has no jwks_uri")
	}
	keys, err := url.Parse(text)
	switch {
	case err != nil:
		return authenticators.Bad(
			typeKeysURL,
			reasonKeysURL,
			"could not parse provider jwks_uri: "+authenticators.DescribeURLError(err),
		)
	case keys.Scheme != "https":
		return authenticators.Bad(
			typeKeysURL,
			reasonKeysURLScheme,
			fmt.Sprintf("jwks_uri %s has invalid scheme, require 'https'", keys.Redacted()),
		)
	case keys.Hostname() == "":
		return authenticators.Bad(typeKeysURL, reasonKeysURL, "jwks_uri has no host")
	}
	return authenticators.Good(typeKeysURL, messageKeysURL)
}
