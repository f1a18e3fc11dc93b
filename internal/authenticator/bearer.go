package authenticator

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

const (
	// VouchedByKey is the extra key and the audit annotation with the authenticator that authenticated a bearer token.
	VouchedByKey = "concierge.pinniped.dev/authenticator"

	jwtTTL     = 10 * time.Second // as in the API server
	webhookTTL = 3 * time.Second  // after which a revoked token is refused
	refusalTTL = time.Second
	maxBearers = 4096
	maxAsked   = 64 // tokens that webhooks verify at a time, of all clients
)

// The kinds of authenticators.
const (
	KindWebhook = string(configv1alpha1.AuthenticatorKindWebhook)
	KindJWT     = string(configv1alpha1.AuthenticatorKindJWT)
)

// Bearer authenticates the bearer tokens of requests with the configured authenticators and the cluster. It is safe for
// concurrent use.
//
// A token goes to one place only. If its issuer and audience match a JWTAuthenticator, only that decides. Any other
// token goes to the cluster, and if the cluster refuses it, to the webhooks, in the order of the configuration. A
// webhook gets no JSON web tokens, or tokens that begin like one, unless the configuration lets it have those of
// unknown issuers. While an authenticator that may know a token is missing or not ready, there is no decision.
type Bearer struct {
	cache   *Cache
	clock   clock.PassiveClock
	salt    [sha256.Size]byte
	spec    atomic.Pointer[configv1alpha1.BearerTokensSpec]
	good    *utilcache.LRUExpireCache // separate from bad: unauthenticated clients must not evict users
	bad     *utilcache.LRUExpireCache
	flights singleflight.Group
	asked   chan struct{} // one for each token that webhooks are verifying
}

// verdict is the decision of an authenticator about a token. It is cached while that authenticator is in use.
type verdict struct {
	by       bearerAuthenticator
	response *authenticator.Response // nil means refused
	err      error
}

// bearerAuthenticator is an authenticator whose tokens are accepted as bearer tokens, with its kind and name.
type bearerAuthenticator struct {
	kind, name string
	token      Token
}

// NewBearer returns a Bearer that only asks the cluster until Use sets the authenticators of cache.
func NewBearer(cache *Cache, clk clock.Clock) *Bearer {
	b := &Bearer{
		cache: cache, clock: clk, asked: make(chan struct{}, maxAsked),
		good: utilcache.NewLRUExpireCacheWithClock(maxBearers, clk),
		bad:  utilcache.NewLRUExpireCacheWithClock(maxBearers, clk),
	}
	_, _ = rand.Read(b.salt[:]) // never fails
	return b
}

// Use sets the authenticators whose tokens are accepted.
func (b *Bearer) Use(spec configv1alpha1.BearerTokensSpec) { b.spec.Store(spec.DeepCopy()) }

// With returns an authenticator of bearer tokens that asks the configured authenticators and cluster.
func (b *Bearer) With(cluster authenticator.Token) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		spec := b.spec.Load()
		if spec == nil || len(spec.Authenticators) == 0 || strings.TrimSpace(token) == "" {
			return cluster.AuthenticateToken(ctx, token)
		}
		form := formOf(token)
		waits := b.waits(spec, form)
		if form.readable {
			if verdict, mine := b.byIssuer(ctx, spec, token, form.said); mine {
				return verdict.result(ctx)
			}
		}
		key := b.key(token)
		if known, ok := b.recall(b.good, key, b.shownTo(spec, form)); ok {
			return known.result(ctx)
		}
		response, ok, err := cluster.AuthenticateToken(ctx, token)
		if ok || isUnavailable(err) || form.isKubernetes() {
			return response, ok, err
		}
		verdict := b.byWebhook(ctx, b.shownTo(spec, form), token, key)
		switch {
		case verdict != nil && verdict.response != nil:
			return verdict.result(ctx)
		case waits || b.waits(spec, form): // checked again, because it may have changed meanwhile
			return nil, false, &unavailableError{
				errors.New("an authenticator that might verify the token is missing or not ready"),
			}
		case verdict != nil:
			return verdict.result(ctx)
		}
		return nil, false, err
	})
}

// shownTo returns the names of the configured webhooks that may get a token.
func (b *Bearer) shownTo(spec *configv1alpha1.BearerTokensSpec, form tokenForm) []string {
	if form.likeJWT && (!form.readable || form.isKubernetes() || b.cache.knowsIssuer(form.said.Issuer)) {
		return nil
	}
	var names []string
	for _, entry := range spec.Authenticators {
		if entry.Kind == configv1alpha1.AuthenticatorKindWebhook && (!form.likeJWT || entry.UnknownIssuers) {
			names = append(names, entry.Name)
		}
	}
	return names
}

// tokenForm is the form of an unverified token.
type tokenForm struct {
	likeJWT  bool // it begins like a JSON web token, in any form and with anything appended
	readable bool // it is a JSON web token with the claims said
	said     UnverifiedClaims
}

func formOf(token string) tokenForm {
	said, readable := Read(token)
	return tokenForm{likeJWT: readable || likeJWT(token), readable: readable, said: said}
}

// isKubernetes is true for a token with a subject of Kubernetes, such as a service account.
func (f tokenForm) isKubernetes() bool { return strings.HasPrefix(f.said.Subject, "system:") }

// jsonStart matches the beginning of a token header in JSON.
var jsonStart = regexp.MustCompile(`^\s*\{\s*("[\w:/#.-]*"\s*:|\})`)

func likeJWT(token string) bool {
	const enough = 256 // of the header, a multiple of four
	text := strings.TrimLeft(token, " \t\r\n\"'")
	if jsonStart.MatchString(text) {
		return true
	}
	end := strings.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune(base64Letters, r) })
	if end >= 0 {
		text = text[:end]
	}
	text = strings.NewReplacer("+", "-", "/", "_").Replace(text[:min(len(text), enough)])
	// Use what was decoded before an error.
	header, _ := base64.RawURLEncoding.DecodeString(text)
	return jsonStart.Match(header)
}

const base64Letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"

// result returns the verdict as the results of AuthenticateToken, and adds the authenticator to the audit event.
func (v *verdict) result(ctx context.Context) (*authenticator.Response, bool, error) {
	if v.response == nil {
		return nil, false, v.err
	}
	audit.AddAuditAnnotation(ctx, VouchedByKey, v.by.kind+"/"+v.by.name)
	return v.response, true, nil
}

// byIssuer asks the JWTAuthenticators that match the token's issuer and audience. It returns false when there is none.
func (b *Bearer) byIssuer(
	ctx context.Context,
	spec *configv1alpha1.BearerTokensSpec,
	token string,
	said UnverifiedClaims,
) (*verdict, bool) {
	var last *verdict
	for _, entry := range spec.Authenticators {
		if entry.Kind != configv1alpha1.AuthenticatorKindJWT {
			continue
		}
		found, _ := b.cache.get(KindJWT, entry.Name)
		jwt, ok := found.authenticator.(*JWT)
		if !ok || !jwt.Handles(said) {
			continue
		}
		by := bearerAuthenticator{KindJWT, entry.Name, jwt}
		key := b.key(token + "\x00" + entry.Name)
		for _, cache := range []*utilcache.LRUExpireCache{b.good, b.bad} {
			if known, ok := b.recall(cache, key, []string{entry.Name}); ok && known.by == by {
				last = known
			}
		}
		if last == nil || last.by != by {
			last = b.ask(ctx, by, token)
			ttl := jwtTTL
			if !said.Expires.IsZero() {
				ttl = min(ttl, said.Expires.Sub(b.clock.Now()))
			}
			b.store(key, last, ttl)
		}
		if last.response != nil {
			break
		}
	}
	return last, last != nil
}

// byWebhook asks the webhooks one after the other. It returns nil when there is none. Concurrent requests with the same
// token ask once.
func (b *Bearer) byWebhook(ctx context.Context, names []string, token, key string) *verdict {
	if known, ok := b.recall(b.bad, key, names); ok {
		return known
	}
	flight := b.flights.DoChan(key, func() (any, error) {
		select {
		case b.asked <- struct{}{}:
			defer func() { <-b.asked }()
		default:
			tooMany := errors.New("the webhooks are verifying the maximum number of tokens")
			return &verdict{err: &unavailableError{tooMany}}, nil
		}
		asking := context.WithoutCancel(ctx) // a webhook has its own time limit
		var last *verdict
		for _, name := range names {
			found, _ := b.cache.get(KindWebhook, name)
			if found.authenticator == nil {
				continue
			}
			verdict := b.ask(asking, bearerAuthenticator{KindWebhook, name, found.authenticator}, token)
			if last == nil || verdict.response != nil || !isUnavailable(last.err) {
				last = verdict // an unavailable authenticator outweighs the refusals of others
			}
			if last.response != nil {
				break
			}
		}
		if last != nil {
			b.store(key, last, webhookTTL)
		}
		return last, nil
	})
	select {
	case landed := <-flight:
		return landed.Val.(*verdict)
	case <-ctx.Done():
		return &verdict{err: &unavailableError{ctx.Err()}}
	}
}

// ask has one authenticator verify the token, and refuses a user that CheckUser does not accept.
func (b *Bearer) ask(ctx context.Context, by bearerAuthenticator, token string) *verdict {
	info, ok, err := by.token.AuthenticateToken(ctx, token)
	var refusal *Refusal
	switch {
	case err != nil && (!errors.As(err, &refusal) || refusal.Reason == ReasonIssuerAway):
		return &verdict{by: by, err: &unavailableError{fmt.Errorf("%s %q failed: %w", by.kind, by.name, err)}}
	case err != nil:
		return &verdict{by: by, err: fmt.Errorf("%s %q rejects the token: %w", by.kind, by.name, err)}
	case !ok || info == nil:
		return &verdict{by: by, err: fmt.Errorf("%s %q rejects the token", by.kind, by.name)}
	}
	if err := CheckUser(info); err != nil {
		return &verdict{by: by, err: fmt.Errorf("%s %q asserts an invalid user: %w", by.kind, by.name, err)}
	}
	extra := map[string][]string{}
	maps.Copy(extra, info.GetExtra())
	extra[VouchedByKey] = []string{by.kind + "/" + by.name}
	return &verdict{by: by, response: &authenticator.Response{User: &user.DefaultInfo{
		Name: info.GetName(), UID: info.GetUID(), Groups: info.GetGroups(), Extra: extra,
	}}}
}

// waits is true while a configured authenticator that may know the token is missing or not ready.
func (b *Bearer) waits(spec *configv1alpha1.BearerTokensSpec, form tokenForm) bool {
	shown := b.shownTo(spec, form)
	return slices.ContainsFunc(spec.Authenticators, func(entry configv1alpha1.BearerTokenAuthenticator) bool {
		found, _ := b.cache.get(string(entry.Kind), entry.Name)
		if found.authenticator != nil {
			return false
		}
		if entry.Kind == configv1alpha1.AuthenticatorKindWebhook {
			return slices.Contains(shown, entry.Name)
		}
		return form.likeJWT && (!form.readable || found.issuer == "" || sameIssuer(found.issuer, form.said.Issuer))
	})
}

// recall returns a cached verdict if its authenticator is still in use.
func (b *Bearer) recall(from *utilcache.LRUExpireCache, key string, names []string) (*verdict, bool) {
	value, ok := from.Get(key)
	if !ok {
		return nil, false
	}
	known := value.(*verdict)
	found, _ := b.cache.get(known.by.kind, known.by.name)
	if found.authenticator != known.by.token || !slices.Contains(names, known.by.name) {
		return nil, false
	}
	return known, true
}

func (b *Bearer) store(key string, v *verdict, ttl time.Duration) {
	switch {
	case isUnavailable(v.err): // says nothing about the token
	case v.response == nil:
		b.bad.Add(key, v, refusalTTL)
	case ttl > 0:
		b.good.Add(key, v, ttl)
	}
}

// key returns a hash of a token, so that the caches contain no tokens.
func (b *Bearer) key(token string) string {
	sum := sha256.Sum256(append(b.salt[:len(b.salt):len(b.salt)], token...))
	return string(sum[:])
}

// unavailableError says that there is no decision.
type unavailableError struct{ cause error }

func (e *unavailableError) Error() string { return e.cause.Error() }

func (e *unavailableError) Unwrap() error { return e.cause }

// Unavailable makes the proxy respond with 503 and not 401, on which a client discards its credential.
func (e *unavailableError) Unavailable() bool { return true }

func isUnavailable(err error) bool {
	var unavailable interface{ Unavailable() bool }
	return errors.As(err, &unavailable) && unavailable.Unavailable()
}
