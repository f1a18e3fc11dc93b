package authenticator

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiservervalidation "k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/utils/ptr"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
)

// maxTokenSize is the maximum size of a header, in bytes.
const maxTokenSize = 1 << 20

// JWT is an authenticator for the tokens of one issuer. It uses the API server's own code, and accepts the same tokens
// as an API server with the same configuration. It is safe for concurrent use.
type JWT struct {
	issuer   string
	audience string
	groups   string // the claim
	verifier oidc.AuthenticatorTokenWithHealthCheck
	end      context.CancelFunc
}

var _ Token = (*JWT)(nil)

// NewJWT returns an authenticator that verifies tokens with the keys of provider, and maps their claims to users by
// spec. Errors describe what is invalid in spec; their field names are relative to spec.
func NewJWT(spec *authenticationv1alpha1.JWTAuthenticatorSpec, provider *Provider) (*JWT, error) {
	config := apiServerConfig(spec)
	compiler := authenticationcel.NewDefaultCompiler()
	_, problems := apiservervalidation.CompileAndValidateJWTAuthenticator(compiler, config, nil)
	for i, extra := range spec.Claims.Extra {
		at := field.NewPath("claims", "extra").Index(i).Child("key")
		known := slices.ContainsFunc(problems, func(p *field.Error) bool {
			return strings.HasSuffix(p.Field, strings.TrimPrefix(at.String(), "claims"))
		})
		switch err := checkExtraKey(extra.Key); {
		case strings.Contains(extra.Key, "="): // client certificates contain "key=value"
			problems = append(problems, field.Invalid(at, extra.Key, "must not contain an equals sign"))
		case err != nil && !known: // each login would be refused
			problems = append(problems, field.Invalid(at, extra.Key, err.Error()))
		}
	}
	if len(problems) > 0 {
		return nil, inTermsOfSpec(problems)
	}
	life, end := context.WithCancel(context.Background())
	verifier, err := oidc.New(life, oidc.Options{
		JWTAuthenticator:     config,
		KeySet:               provider,
		Client:               provider.client, // for distributed claims
		Compiler:             compiler,
		SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(), // as in the API server's structured authentication
	})
	if err != nil {
		end()
		return nil, err
	}
	return &JWT{
		issuer: spec.Issuer, audience: spec.Audience, groups: cmp.Or(spec.Claims.Groups, "groups"),
		verifier: verifier, end: end,
	}, nil
}

// apiServerConfig converts spec to the API server's configuration.
func apiServerConfig(spec *authenticationv1alpha1.JWTAuthenticatorSpec) apiserver.JWTAuthenticator {
	config := apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{URL: spec.Issuer, Audiences: []string{spec.Audience}},
		ClaimMappings: apiserver.ClaimMappings{
			Username: claimOrExpression(spec.Claims.Username, spec.Claims.UsernameExpression, "username"),
			Groups:   claimOrExpression(spec.Claims.Groups, spec.Claims.GroupsExpression, "groups"),
		},
	}
	for _, extra := range spec.Claims.Extra {
		config.ClaimMappings.Extra = append(config.ClaimMappings.Extra, apiserver.ExtraMapping(extra))
	}
	for _, rule := range spec.ClaimValidationRules {
		config.ClaimValidationRules = append(config.ClaimValidationRules, apiserver.ClaimValidationRule(rule))
	}
	for _, rule := range spec.UserValidationRules {
		config.UserValidationRules = append(config.UserValidationRules, apiserver.UserValidationRule(rule))
	}
	return config
}

func claimOrExpression(claim, expression, standard string) apiserver.PrefixedClaimOrExpression {
	if claim == "" && expression == "" {
		claim = standard
	}
	mapping := apiserver.PrefixedClaimOrExpression{Claim: claim, Expression: expression}
	if claim != "" && expression == "" {
		mapping.Prefix = ptr.To("") // required with a claim
	}
	return mapping
}

// inTermsOfSpec replaces the API server's field names in errors with those of a JWTAuthenticator's spec.
func inTermsOfSpec(problems field.ErrorList) error {
	fields := strings.NewReplacer(
		"claimMappings.username.expression", "claims.usernameExpression",
		"claimMappings.groups.expression", "claims.groupsExpression",
		"claimMappings.", "claims.",
		"issuer.url", "issuer",
		"issuer.audiences[0]", "audience",
	)
	translated := make(field.ErrorList, 0, len(problems))
	for _, problem := range problems {
		ours := *problem
		ours.Field = fields.Replace(ours.Field)
		ours.Detail = fields.Replace(ours.Detail)
		translated = append(translated, &ours)
	}
	return translated.ToAggregate()
}

// Close stops background work. Do not use the JWT afterwards.
func (j *JWT) Close() { j.end() }

// Handles is true when the token's unverified issuer and audience are those of this authenticator.
func (j *JWT) Handles(said UnverifiedClaims) bool {
	return said.Issuer == j.issuer && slices.Contains(said.Audiences, j.audience)
}

// AuthenticateToken verifies the token. An error about the token itself is a *Refusal.
func (j *JWT) AuthenticateToken(ctx context.Context, token string) (user.Info, bool, error) {
	// Refuse anything but three parts, without allocating memory.
	if len(token) > maxTokenSize || strings.Count(token, ".") != 2 {
		return nil, false, &Refusal{
			ReasonNotAToken,
			"this is not a JSON Web Token",
			errors.New("not three parts, or too long"),
		}
	}
	trace := &verification{}
	response, ok, err := j.verifier.AuthenticateToken(context.WithValue(ctx, verificationKey{}, trace), token)
	switch {
	case trace.unavailable != nil:
		return nil, false, &Refusal{ReasonIssuerAway, "the issuer's keys could not be fetched", trace.unavailable}
	case trace.skipped != nil:
		return nil, false, &Refusal{ReasonRefused, trace.skipped.Error(), trace.skipped}
	case err != nil || !ok:
		return nil, false, j.refusal(token, err, time.Now())
	case strings.TrimSpace(response.User.GetName()) == "":
		const nameless = "the token names no user"
		return nil, false, &Refusal{ReasonRefused, nameless, errors.New(nameless)}
	}
	return response.User, true, nil
}

// refusal says why a token was refused. It only reveals what the token itself contains, because the bearer reads it.
func (j *JWT) refusal(token string, cause error, now time.Time) error {
	if cause == nil {
		cause = errors.New("another issuer")
	}
	const leeway = time.Minute // as in the API server's code
	said, readable := Read(token)
	r := &Refusal{Reason: ReasonRefused, message: refused, cause: cause}
	switch {
	case !readable:
		r.Reason, r.message = ReasonNotAToken, "this is not a JSON Web Token"
	case said.Issuer != j.issuer:
		r.Reason, r.message = ReasonIssuer, fmt.Sprintf("the token is from another issuer, %q", bounded(said.Issuer))
	case !slices.Contains(said.Audiences, j.audience):
		audiences := bounded(strings.Join(said.Audiences, ", "))
		r.Reason, r.message = ReasonAudience, fmt.Sprintf("the token is for another audience, %q", audiences)
	case said.Expires.IsZero():
		r.Reason, r.message = ReasonExpired, "the token has no expiry time"
	case said.Expires.Before(now):
		r.Reason, r.message = ReasonExpired, "the token expired at "+said.Expires.UTC().Format(time.RFC3339)
	case said.NotBefore.After(now.Add(leeway)):
		r.Reason, r.message = ReasonNotYet, "the token is not valid before "+said.NotBefore.UTC().Format(time.RFC3339)
	case slices.Contains(said.Elsewhere, j.groups):
		r.message = fmt.Sprintf("the issuer left the claim %q out of the token (_claim_names), because the user is in too "+
			"many groups: configure the issuer to put fewer groups into tokens (in Entra ID, only groups assigned to the "+
			"application)", j.groups)
	}
	return r
}

// UnverifiedClaims are claims of a token that was not verified.
type UnverifiedClaims struct {
	Issuer, Subject    string
	Audiences          []string
	Expires, NotBefore time.Time // zero when missing
	Elsewhere          []string  // names of distributed claims (_claim_names)
}

// Read returns the claims of a token without verification, and false when it is not a JSON web token.
func Read(token string) (UnverifiedClaims, bool) {
	if len(token) > maxTokenSize || strings.Count(token, ".") != 2 {
		return UnverifiedClaims{}, false
	}
	text := token[strings.Index(token, ".")+1 : strings.LastIndex(token, ".")]
	payload, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return UnverifiedClaims{}, false
	}
	var claims struct {
		Issuer    string          `json:"iss"`
		Subject   json.RawMessage `json:"sub"`
		Audiences json.RawMessage `json:"aud"`
		Expires   float64         `json:"exp"`
		NotBefore float64         `json:"nbf"`
		Elsewhere json.RawMessage `json:"_claim_names"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return UnverifiedClaims{}, false
	}
	said := UnverifiedClaims{Issuer: claims.Issuer, Expires: instant(claims.Expires), NotBefore: instant(claims.NotBefore)}
	_ = json.Unmarshal(claims.Subject, &said.Subject) // ignore a subject that is not a string
	if json.Unmarshal(claims.Audiences, &said.Audiences) != nil {
		var one string
		if json.Unmarshal(claims.Audiences, &one) == nil {
			said.Audiences = []string{one}
		}
	}
	var elsewhere map[string]any
	if json.Unmarshal(claims.Elsewhere, &elsewhere) == nil {
		said.Elsewhere = slices.Collect(maps.Keys(elsewhere))
	}
	return said, true
}

func instant(seconds float64) time.Time {
	const latest = 1 << 40 // far beyond any real token, but still a valid time
	if seconds <= 0 || seconds > latest {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0)
}
