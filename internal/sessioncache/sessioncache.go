// Package sessioncache keeps the tokens of OpenID Connect logins in a file, so that people log in once a day instead of
// with every kubectl command.
//
// The file and its format are those of Pinniped's own CLI, so both can share it. A cache failure never fails a login:
// an unreadable file is a cache miss.
package sessioncache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cachefile"
)

const (
	// unusedLifetime is how long a session is kept after a login last used it.
	unusedLifetime = 90 * 24 * time.Hour
	// touchInterval is how old lastUsedTimestamp may get before it is updated, so that most logins write nothing.
	touchInterval = 24 * time.Hour
)

// Key identifies the session of a login.
type Key struct {
	Issuer   string   `json:"issuer"`
	ClientID string   `json:"clientID"`
	Scopes   []string `json:"scopes"` // sorted
	// RedirectURI has the configured port, not the port on which the login listened.
	RedirectURI string `json:"redirect_uri"`
	// UpstreamProviderName is the name of a Supervisor's identity provider.
	UpstreamProviderName string `json:"upstream_provider_name,omitempty"`
}

// Equal reports whether both keys name the same session.
func (k *Key) Equal(other Key) bool {
	return k.Issuer == other.Issuer && k.ClientID == other.ClientID && slices.Equal(k.Scopes, other.Scopes) &&
		k.RedirectURI == other.RedirectURI && k.UpstreamProviderName == other.UpstreamProviderName
}

// Tokens are the tokens that the issuer returned. Each may be nil.
type Tokens struct {
	Access  *AccessToken  `json:"access,omitempty"`
	Refresh *RefreshToken `json:"refresh,omitempty"`
	ID      *IDToken      `json:"id,omitempty"`
}

// AccessToken authorizes requests to the issuer's own endpoints.
type AccessToken struct {
	Token  string      `json:"token"`
	Type   string      `json:"type,omitempty"`
	Expiry metav1.Time `json:"expiryTimestamp"`
}

// RefreshToken gets new tokens without a login.
type RefreshToken struct {
	Token string `json:"token"`
}

// IDToken is an ID token, which was verified before it was stored.
type IDToken struct {
	Token  string         `json:"token"`
	Expiry metav1.Time    `json:"expiryTimestamp"`
	Claims map[string]any `json:"claims,omitempty"`
}

// Session is one entry of the file.
type Session struct {
	Key               Key         `json:"key"`
	CreationTimestamp metav1.Time `json:"creationTimestamp"`
	LastUsedTimestamp metav1.Time `json:"lastUsedTimestamp"`
	Tokens            Tokens      `json:"tokens"`
}

type file struct {
	metav1.TypeMeta `json:",inline"`
	Sessions        []Session `json:"sessions"`
}

// Cache is a session file. With an empty Path it stores nothing. It is safe for concurrent use by goroutines and by
// processes.
type Cache struct {
	// Path of the file. The file and its directory are created when needed.
	Path string
	// Now is the clock.
	Now func() time.Time
}

// Get returns the session stored under key, or nil. It takes no lock, and writes nothing unless the time of last use is
// more than a day old.
func (c *Cache) Get(ctx context.Context, key Key) *Tokens {
	if c.Path == "" {
		return nil
	}
	for _, s := range c.read().Sessions {
		if !s.Key.Equal(key) {
			continue
		}
		if c.Now().Sub(s.LastUsedTimestamp.Time) > touchInterval {
			_ = c.touch(ctx, key) // the tokens are valid even if this fails
		}
		return &s.Tokens
	}
	return nil
}

// touch sets the time of last use. It reads the session again, because another process may have renewed or ended it.
func (c *Cache) touch(ctx context.Context, key Key) error {
	return c.change(ctx, func(sessions []Session) ([]Session, bool) {
		i := slices.IndexFunc(sessions, func(s Session) bool { return s.Key.Equal(key) })
		if i < 0 {
			return sessions, false
		}
		sessions[i].LastUsedTimestamp = metav1.NewTime(c.Now())
		return sessions, true
	})
}

// Put stores tokens under key, and drops sessions that have not been used for 90 days.
func (c *Cache) Put(ctx context.Context, key Key, tokens Tokens) error {
	return c.change(ctx, func(sessions []Session) ([]Session, bool) {
		now := metav1.NewTime(c.Now())
		sessions = slices.DeleteFunc(sessions, func(s Session) bool { return s.Key.Equal(key) })
		return append(sessions, Session{
			Key: key, CreationTimestamp: now, LastUsedTimestamp: now, Tokens: tokens,
		}), true
	})
}

// Sessions returns all sessions.
func (c *Cache) Sessions() []Session {
	if c.Path == "" {
		return nil
	}
	return c.read().Sessions
}

// Take removes and returns the session under key, or returns nil if there is none.
func (c *Cache) Take(ctx context.Context, key Key) (*Session, error) {
	var taken *Session
	err := c.change(ctx, func(sessions []Session) ([]Session, bool) {
		kept := make([]Session, 0, len(sessions))
		for _, s := range sessions {
			if s.Key.Equal(key) {
				taken = &s
				continue
			}
			kept = append(kept, s)
		}
		return kept, taken != nil
	})
	if err != nil {
		return nil, err
	}
	return taken, nil
}

// Alone waits until no other process logs in for key, and blocks others until unlock is called. The caller then finds
// the other process's tokens in the cache: the user logs in once, and a refresh token is used once. Without a cache it
// does nothing.
func (c *Cache) Alone(ctx context.Context, key Key) (unlock func(), err error) {
	if c.Path == "" {
		return func() {}, nil
	}
	text, err := json.Marshal(key)
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(text)
	return c.file().LockOperation(ctx, "login-"+hex.EncodeToString(hash[:6]))
}

// change replaces the sessions with those that change returns, if it returns true.
func (c *Cache) change(ctx context.Context, change func([]Session) ([]Session, bool)) error {
	if c.Path == "" {
		return nil
	}
	return cachefile.Change(ctx, c.file(), func(cached *file) bool {
		changed := false
		if cached.Sessions, changed = change(cached.Sessions); !changed {
			return false
		}
		cached.Sessions = slices.DeleteFunc(cached.Sessions, func(s Session) bool {
			return c.Now().Sub(s.LastUsedTimestamp.Time) > unusedLifetime
		})
		slices.SortStableFunc(cached.Sessions, func(a, b Session) int {
			return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
		})
		return true
	})
}

func (c *Cache) file() cachefile.File { return cachefile.File{Path: c.Path, Kind: "SessionCache"} }

func (c *Cache) read() *file { return cachefile.Read[file](c.file()) }
