// Package authenticator authenticates tokens: it has the authenticators that the cluster's WebhookAuthenticator and
// JWTAuthenticator objects describe, and calls their webhooks and issuers.
package authenticator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
)

// Token authenticates tokens.
type Token interface {
	// AuthenticateToken returns the token's user, or false when the token is invalid, or an error when that could not
	// be decided. It is safe for concurrent use. Neither the error nor the user contains the token.
	AuthenticateToken(ctx context.Context, token string) (user.Info, bool, error)
}

// ErrNoSuchAuthenticator is the error for a reference to an authenticator that does not exist.
var ErrNoSuchAuthenticator = errors.New("no such authenticator")

// ErrNotReady is the error for a reference to an authenticator that exists but is not ready.
var ErrNotReady = errors.New("the authenticator is not ready")

// Reason is the machine-readable reason of a failed login.
type Reason string

// The reasons.
const (
	ReasonRefused    Reason = "Refused"           // by the authenticator, without a known reason
	ReasonNotAToken  Reason = "NotAToken"         // not a JSON web token
	ReasonIssuer     Reason = "WrongIssuer"       // not the authenticator's issuer
	ReasonAudience   Reason = "WrongAudience"     // not the authenticator's audience
	ReasonExpired    Reason = "Expired"           // or without an expiry
	ReasonNotYet     Reason = "NotYetValid"       // by the claim "nbf"
	ReasonIssuerAway Reason = "IssuerUnavailable" // the keys could not be fetched
)

const refused = "the authenticator rejects the token"

// Refusal is the error for a refused token. Error returns the full reason, for a log; Message returns what the bearer
// of the token may know.
type Refusal struct {
	Reason  Reason
	message string
	cause   error
}

// Message returns why the token was refused, for its bearer.
func (r *Refusal) Message() string { return r.message }

func (r *Refusal) Error() string { return r.cause.Error() }

func (r *Refusal) Unwrap() error { return r.cause }

// Cache has the authenticators of a cluster. It is safe for concurrent use.
type Cache struct {
	apiGroup string

	mu      sync.RWMutex
	entries map[key]entry
}

// entry is an authenticator, or the reason why it is not ready.
type entry struct {
	authenticator Token  // nil means not ready
	issuer        string // of a JWTAuthenticator; "" if unknown
	problem       string
}

type key struct{ kind, name string }

// NewCache returns an empty cache for the authenticators of an API group, such as
// "authentication.concierge.pinniped.dev".
func NewCache(apiGroup string) *Cache {
	return &Cache{apiGroup: apiGroup, entries: map[key]entry{}}
}

// Expect records that the authenticator exists, and the issuer of its tokens. It does not change whether the
// authenticator is ready; a new one is not.
func (c *Cache) Expect(kind, name, issuer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, exists := c.entries[key{kind, name}]
	if !exists {
		found.problem = "it has not been checked yet"
	}
	found.issuer = issuer
	c.entries[key{kind, name}] = found
}

// Put sets the ready authenticator of a kind, such as "WebhookAuthenticator", and a name.
func (c *Cache) Put(kind, name string, authenticator Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries[key{kind, name}] = entry{authenticator: authenticator, issuer: c.entries[key{kind, name}].issuer}
}

// Suspend records that the authenticator exists but is not ready, and why. It reports whether it was ready before.
func (c *Cache) Suspend(kind, name, why string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.entries[key{kind, name}]
	c.entries[key{kind, name}] = entry{issuer: before.issuer, problem: why}
	return before.authenticator != nil
}

// Remove records that the authenticator does not exist. It reports whether it was ready before.
func (c *Cache) Remove(kind, name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.entries[key{kind, name}]
	delete(c.entries, key{kind, name})
	return before.authenticator != nil
}

// AuthenticateToken passes the token to the authenticator that reference names. It returns ErrNoSuchAuthenticator when
// that does not exist, and ErrNotReady when it is not ready. It refuses an empty or blank token without asking an
// authenticator.
func (c *Cache) AuthenticateToken(
	ctx context.Context,
	reference corev1.TypedLocalObjectReference,
	token string,
) (user.Info, bool, error) {
	found, exists := c.get(reference.Kind, reference.Name)
	if !exists || ptr.Deref(reference.APIGroup, "") != c.apiGroup {
		return nil, false, fmt.Errorf("%w: %q of kind %q in API group %q",
			ErrNoSuchAuthenticator, bounded(reference.Name), bounded(reference.Kind), bounded(ptr.Deref(reference.APIGroup, "")))
	}
	if found.authenticator == nil {
		return nil, false, fmt.Errorf("%w: %s", ErrNotReady, found.problem)
	}
	if strings.TrimSpace(token) == "" {
		return nil, false, nil
	}
	return found.authenticator.AuthenticateToken(ctx, token)
}

func (c *Cache) get(kind, name string) (entry, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	found, exists := c.entries[key{kind, name}]
	return found, exists
}

// knowsIssuer is true when a JWTAuthenticator has this issuer, ready or not. It ignores case and trailing slashes.
func (c *Cache) knowsIssuer(issuer string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for k, found := range c.entries {
		if k.kind != KindJWT {
			continue
		}
		// After a change of its issuer, the authenticator in use still has the previous one.
		if jwt, ok := found.authenticator.(*JWT); ok && sameIssuer(jwt.issuer, issuer) || sameIssuer(found.issuer, issuer) {
			return true
		}
	}
	return false
}

func sameIssuer(a, b string) bool {
	return strings.EqualFold(strings.TrimRight(strings.TrimSpace(a), "/"), strings.TrimRight(strings.TrimSpace(b), "/"))
}

// maxExternal is the length of the longest name in Kubernetes.
const maxExternal = 253

// bounded truncates external text for logs.
func bounded(text string) string { return logs.Truncate(text, maxExternal) }
