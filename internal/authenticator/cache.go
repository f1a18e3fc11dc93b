// Package authenticator finds out whom a token belongs to: it holds the authenticators that the cluster's
// WebhookAuthenticator objects describe, and speaks to their webhooks.
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
)

// Token finds out whom a token belongs to.
type Token interface {
	// AuthenticateToken returns the token's user, or false when the token is not good, or an error when that could not
	// be found out. It is safe for concurrent use, and neither the error nor the user contains the token.
	AuthenticateToken(ctx context.Context, token string) (user.Info, bool, error)
}

// ErrNoSuchAuthenticator is returned for a reference to an authenticator that does not exist.
var ErrNoSuchAuthenticator = errors.New("no such authenticator")

// ErrNotReady is returned for a reference to an authenticator that exists and cannot be used now.
var ErrNotReady = errors.New("the authenticator is not ready")

// Cache holds the authenticators that may be used now. It is safe for concurrent use.
type Cache struct {
	apiGroup string

	mu      sync.RWMutex
	entries map[key]entry
}

// entry is an authenticator, or why there is none to be used.
type entry struct {
	authenticator Token  // nil: not ready
	issuer        string // of a JWTAuthenticator's tokens; "" if that is not known
	problem       string
}

type key struct{ kind, name string }

// NewCache returns an empty cache for the authenticators of one API group, such as
// "authentication.concierge.pinniped.dev".
func NewCache(apiGroup string) *Cache {
	return &Cache{apiGroup: apiGroup, entries: map[key]entry{}}
}

// Expect says that the authenticator of that kind and name exists, and of which issuer its tokens are. Whether it can be
// used stays as it is; a new one cannot be used yet.
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

// Put makes an authenticator usable under a kind, such as "WebhookAuthenticator", and a name. It replaces what was
// there.
func (c *Cache) Put(kind, name string, authenticator Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries[key{kind, name}] = entry{authenticator: authenticator, issuer: c.entries[key{kind, name}].issuer}
}

// Suspend says that the authenticator of that kind and name exists and cannot be used, and why. It reports whether it
// could be before.
func (c *Cache) Suspend(kind, name, why string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.entries[key{kind, name}]
	c.entries[key{kind, name}] = entry{issuer: before.issuer, problem: why}
	return before.authenticator != nil
}

// Remove says that there is no authenticator of that kind and name. It reports whether there was one that could be
// used.
func (c *Cache) Remove(kind, name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.entries[key{kind, name}]
	delete(c.entries, key{kind, name})
	return before.authenticator != nil
}

// AuthenticateToken gives the token to the authenticator that reference names. It returns ErrNoSuchAuthenticator
// when there is no such authenticator, and ErrNotReady when it cannot be used now. An empty or blank token never
// authenticates a user: no authenticator is asked about it.
func (c *Cache) AuthenticateToken(
	ctx context.Context,
	reference corev1.TypedLocalObjectReference,
	token string,
) (user.Info, bool, error) {
	found, exists := c.find(reference)
	if !exists {
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

func (c *Cache) find(reference corev1.TypedLocalObjectReference) (entry, bool) {
	if ptr.Deref(reference.APIGroup, "") != c.apiGroup {
		return entry{}, false
	}
	return c.get(reference.Kind, reference.Name)
}

func (c *Cache) get(kind, name string) (entry, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	found, exists := c.entries[key{kind, name}]
	return found, exists
}

// knowsIssuer is true when a JWTAuthenticator has this issuer, whether it can be used or not. Case and slashes at the
// end do not matter here: an issuer that is written in another way is the same issuer.
func (c *Cache) knowsIssuer(issuer string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for k, found := range c.entries {
		if k.kind != KindJWT {
			continue
		}
		// After a change of its issuer, the one in use is still of the previous one.
		if jwt, ok := found.authenticator.(*JWT); ok && sameIssuer(jwt.issuer, issuer) || sameIssuer(found.issuer, issuer) {
			return true
		}
	}
	return false
}

func sameIssuer(a, b string) bool {
	return strings.EqualFold(strings.TrimRight(strings.TrimSpace(a), "/"), strings.TrimRight(strings.TrimSpace(b), "/"))
}

// bounded keeps what others wrote from filling a log.
func bounded(text string) string {
	const limit = 253 // the longest name in Kubernetes
	if len(text) > limit {
		return strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}
