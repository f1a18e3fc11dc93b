// Package jwtauthenticator evaluates JWTAuthenticators: whether the issuer's discovery works, its keys can be fetched,
// and the API server's own code accepts the claims and rules.
package jwtauthenticator

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/controller/authenticators"
	"github.com/pinniped-toolkit/pinniped/internal/keyset"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
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

// Kind is the key of these authenticators in the cache.
const Kind = authenticator.KindJWT

// Evaluator checks whether JWTAuthenticators can verify tokens, and returns the conditions.
type Evaluator struct {
	// Proxy returns the HTTP proxy for a request, as http.ProxyFromEnvironment does; nil means none.
	Proxy func(*http.Request) (*url.URL, error)
	Clock clock.PassiveClock
}

// Kind returns what the shared reconciler needs to know about JWTAuthenticators.
func (e *Evaluator) Kind() authenticators.Kind {
	typed := func(object client.Object) *authenticationv1alpha1.JWTAuthenticator {
		return object.(*authenticationv1alpha1.JWTAuthenticator)
	}
	return authenticators.Kind{
		Name:    Kind,
		New:     func() client.Object { return &authenticationv1alpha1.JWTAuthenticator{} },
		NewList: func() client.ObjectList { return &authenticationv1alpha1.JWTAuthenticatorList{} },
		TLS:     func(object client.Object) *authenticationv1alpha1.TLSSpec { return typed(object).Spec.TLS },
		Status: func(object client.Object) authenticators.Status {
			return authenticators.Status(typed(object).Status)
		},
		Issuer: func(object client.Object) string { return typed(object).Spec.Issuer },
		Evaluate: func(ctx context.Context, object client.Object, bundle authenticators.CABundle, before authenticators.Known) authenticators.Evaluation {
			k, _ := before.(*known)
			return e.evaluate(ctx, &typed(object).Spec, bundle, k)
		},
		Checking: func(object client.Object, bundle authenticators.CABundle) []metav1.Condition {
			conditions := []metav1.Condition{bundle.Condition, checkIssuer(typed(object).Spec.Issuer)}
			for _, kind := range []string{typeDiscovery, typeKeysURL, typeKeys, authenticators.TypeAuthenticator} {
				conditions = append(conditions, authenticators.Checking(kind))
			}
			return conditions
		},
	}
}

// target identifies what a provider connects to. A change of it requires a new provider and a probe.
type target struct {
	issuer string
	bundle [sha256.Size]byte
}

// known is the state of one JWTAuthenticator between evaluations. It is immutable once returned.
type known struct {
	target   target
	provider *authenticator.Provider
	probed   []metav1.Condition // conditions of the latest probe: discovery, JWKS URL, keys
	failed   error              // the error in full; the status omits details
	pace     authenticators.Pace

	spec    [sha256.Size]byte // the hash of the spec of jwt
	jwt     *authenticator.JWT
	problem error // why jwt is nil
	usable  bool
}

// InUse implements authenticators.Known.
func (k *known) InUse() authenticator.Token {
	if !k.usable {
		return nil
	}
	return k.jwt
}

// Release implements authenticators.Known.
func (k *known) Release(next authenticators.Known) {
	following, ok := next.(*known)
	if k.jwt != nil && (!ok || following.jwt != k.jwt) {
		k.jwt.Close()
	}
	if !ok || following.provider != k.provider {
		k.provider.Close()
	}
}

// evaluate checks a spec. before is the result of the previous evaluation of the object, or nil. Only the probe uses
// the network.
func (e *Evaluator) evaluate(
	ctx context.Context, spec *authenticationv1alpha1.JWTAuthenticatorSpec, bundle authenticators.CABundle, before *known,
) authenticators.Evaluation {
	issuer := checkIssuer(spec.Issuer)
	f := authenticators.Evaluation{
		Conditions:   []metav1.Condition{bundle.Condition, issuer},
		RequeueAfter: authenticators.ProbeEvery,
	}
	if !bundle.Usable() || issuer.Status != metav1.ConditionTrue {
		f.Conditions = append(f.Conditions, authenticators.Unknown(typeDiscovery), authenticators.Unknown(typeKeysURL),
			authenticators.Unknown(typeKeys), authenticators.Unknown(authenticators.TypeAuthenticator))
		return f
	}
	k := e.prepare(spec, bundle, before)
	if k.pace.Due(e.Clock.Now()) {
		var failed error
		k.probed, failed = probe(ctx, k.provider)
		authenticators.LogProbe(ctx, failed, k.failed)
		k.failed = failed
		succeeded := k.probed[len(k.probed)-1].Status == metav1.ConditionTrue
		k.pace = k.pace.After(succeeded, e.Clock.Now())
	}
	k.usable = k.jwt != nil && k.provider.Ready()
	f.Known = k
	f.RequeueAfter = k.pace.Wait(e.Clock.Now())
	f.Conditions = append(append(f.Conditions, k.probed...), authenticatorCondition(k))
	return f
}

// prepare returns a known with a provider and an authenticator for this spec. If only claims or rules have changed, it
// keeps the provider with its keys, so that the change takes effect even while the issuer is unavailable.
func (e *Evaluator) prepare(
	spec *authenticationv1alpha1.JWTAuthenticatorSpec,
	bundle authenticators.CABundle,
	before *known,
) *known {
	k := &known{}
	if before != nil {
		*k = *before
	}
	aim := target{issuer: spec.Issuer, bundle: bundle.Sum()}
	fresh := before == nil || before.target != aim
	if fresh {
		k = &known{
			target: aim,
			provider: authenticator.NewProvider(
				authenticator.ProviderOptions{Issuer: spec.Issuer, Roots: bundle.Pool(), Proxy: e.Proxy, Clock: e.Clock},
			),
		}
	}
	if sum := sumOf(spec); fresh || sum != k.spec {
		k.spec = sum
		k.jwt, k.problem = authenticator.NewJWT(spec, k.provider)
	}
	return k
}

// sumOf hashes a spec, for comparison.
func sumOf(spec *authenticationv1alpha1.JWTAuthenticatorSpec) [sha256.Size]byte {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // unreachable: only text
	}
	return sha256.Sum256(text)
}

// probe performs discovery and fetches the keys. It returns the conditions, and the error, if any.
func probe(ctx context.Context, provider *authenticator.Provider) ([]metav1.Condition, error) {
	keysURL, err := provider.Discover(ctx)
	if err != nil {
		problem := "could not perform oidc discovery on provider issuer: " + authenticators.DescribeProbe(err)
		return []metav1.Condition{
			authenticators.Bad(typeDiscovery, reasonDiscovery, problem),
			authenticators.Unknown(typeKeysURL),
			authenticators.Unknown(typeKeys),
		}, err
	}
	found := []metav1.Condition{authenticators.Good(typeDiscovery, messageDiscovery), checkKeysURL(keysURL)}
	if found[1].Status != metav1.ConditionTrue {
		return append(found, authenticators.Unknown(typeKeys)), nil
	}
	provider.UseKeysURL(keysURL)
	if err := provider.FetchKeys(ctx); err != nil {
		problem := "could not fetch keys: " + authenticators.DescribeProbe(err)
		return append(found, authenticators.Bad(typeKeys, reasonKeys, problem)), err
	}
	message := messageKeys
	if skipped := provider.Skipped(); len(skipped) > 0 {
		message += "; not used: " + keyset.Describe(skipped)
	}
	return append(found, authenticators.Good(typeKeys, message)), nil
}

// authenticatorCondition says whether tokens can be verified. An invalid spec is reported before the issuer has
// responded.
func authenticatorCondition(k *known) metav1.Condition {
	switch {
	case k.problem != nil:
		return authenticators.Bad(authenticators.TypeAuthenticator, reasonAuthenticator,
			"could not initialize jwt authenticator: "+authenticators.Describe(k.problem))
	case !k.provider.Ready():
		return authenticators.Unknown(authenticators.TypeAuthenticator)
	default:
		return authenticators.Good(authenticators.TypeAuthenticator, authenticators.MessageAuthenticator)
	}
}

// checkIssuer says whether text is a valid issuer URL.
func checkIssuer(text string) metav1.Condition {
	const wellKnown = "/.well-known/openid-configuration"
	invalid := func(why string) metav1.Condition {
		return authenticators.Bad(typeIssuer, reasonIssuer, "spec.issuer URL is invalid: "+why)
	}
	refuse := func(reason, why string) metav1.Condition {
		return authenticators.Bad(typeIssuer, reason, fmt.Sprintf("spec.issuer %s %s", text, why))
	}
	issuer, err := url.Parse(text)
	switch {
	case err != nil:
		return invalid(authenticators.DescribeURLError(err))
	case issuer.User != nil:
		return invalid("it contains a username or a password")
	case issuer.Scheme != "https":
		return refuse(reasonIssuerScheme, "has invalid scheme, require 'https'")
	case issuer.Hostname() == "":
		return invalid("it has no host")
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
	bad := func(reason, why string) metav1.Condition { return authenticators.Bad(typeKeysURL, reason, why) }
	keys, err := url.Parse(text)
	switch {
	case text == "":
		return bad(reasonKeysURL, "the issuer's discovery document has no jwks_uri")
	case err != nil:
		return bad(reasonKeysURL, "could not parse provider jwks_uri: "+authenticators.DescribeURLError(err))
	case keys.Scheme != "https":
		return bad(reasonKeysURLScheme, fmt.Sprintf("jwks_uri %s has invalid scheme, require 'https'", keys.Redacted()))
	case keys.Hostname() == "":
		return bad(reasonKeysURL, "jwks_uri has no host")
	}
	return authenticators.Good(typeKeysURL, messageKeysURL)
}
