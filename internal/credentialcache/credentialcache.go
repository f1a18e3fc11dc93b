// Package credentialcache keeps short-lived cluster credentials in a file, so that not every kubectl command logs in.
//
// The file and its format are those of Pinniped's own CLI, so both can share it. It holds private keys, and only its
// owner can read it. A cache failure never fails a login: an unreadable file is a cache miss.
package credentialcache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"

	"github.com/pinniped-toolkit/pinniped/internal/cachefile"
)

const (
	// maxAge is the longest an entry is used, regardless of its expiry.
	maxAge = time.Hour
	// maxMargin is how long before its expiry a credential is no longer used, so that it does not expire during a
	// command. For short-lived credentials the margin is a tenth of their lifetime.
	maxMargin = 30 * time.Second
)

// Cache is a cache file. With an empty Path, as in the zero value, it stores nothing. It is safe for concurrent use by
// goroutines and by processes.
type Cache struct {
	// Path of the file. The file and its directory are created when needed.
	Path string
	// Now is the clock.
	Now func() time.Time
}

type file struct {
	metav1.TypeMeta `json:",inline"`
	Credentials     []entry `json:"credentials"`
}

type entry struct {
	Key               string                                            `json:"key"`
	CreationTimestamp metav1.Time                                       `json:"creationTimestamp"`
	LastUsedTimestamp metav1.Time                                       `json:"lastUsedTimestamp"`
	Credential        *clientauthenticationv1beta1.ExecCredentialStatus `json:"credential"`
	// RequestHeaders are sent with the credential. Pinniped's CLI drops this field when it writes the file.
	RequestHeaders map[string][]string `json:"requestHeaders,omitempty"`
}

// Key returns the cache key of a login, a hash of its arguments, its static token if any, and the cluster.
func Key(args []string, token string, cluster *clientauthenticationv1beta1.Cluster) (string, error) {
	hash := sha256.New()
	// The Encoder ends the text with a line feed, which is part of the key.
	err := json.NewEncoder(hash).Encode(struct {
		Args    []string                             `json:"args"`
		Token   string                               `json:"token,omitempty"`
		Cluster *clientauthenticationv1beta1.Cluster `json:"cluster"`
	}{args, token, cluster})
	if err != nil {
		return "", fmt.Errorf("computing the cache key: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// Get returns the credential stored under key, or nil if there is none or it expires soon. It takes no lock and writes
// nothing, as writes replace the whole file.
func (c *Cache) Get(key string) *clientauthenticationv1beta1.ExecCredentialStatus {
	credential, _ := c.GetWithHeaders(key)
	return credential
}

// GetWithHeaders is like Get, and also returns the credential's request headers.
func (c *Cache) GetWithHeaders(
	key string,
) (credential *clientauthenticationv1beta1.ExecCredentialStatus, headers map[string][]string) {
	if c.Path == "" {
		return nil, nil
	}
	for _, e := range c.read().Credentials {
		if e.Key == key && e.usable(c.Now()) {
			return e.Credential, e.RequestHeaders
		}
	}
	return nil, nil
}

// Put stores credential and its request headers under key, and drops expired entries. A credential without expiry is not
// stored. Callers should only log the error: the login has succeeded anyway.
func (c *Cache) Put(
	ctx context.Context, key string, credential *clientauthenticationv1beta1.ExecCredentialStatus,
	headers map[string][]string,
) error {
	if c.Path == "" || credential == nil || credential.ExpirationTimestamp == nil {
		return nil
	}
	return cachefile.Change(ctx, c.file(), func(cached *file) bool {
		now := metav1.NewTime(c.Now())
		cached.Credentials = slices.DeleteFunc(cached.Credentials, func(e entry) bool {
			return e.Key == key || !e.usable(now.Time)
		})
		cached.Credentials = append(cached.Credentials, entry{
			Key: key, CreationTimestamp: now, LastUsedTimestamp: now, Credential: credential, RequestHeaders: headers,
		})
		slices.SortStableFunc(cached.Credentials, func(a, b entry) int {
			return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
		})
		return true
	})
}

// Delete removes the entries with these keys, or all entries if all is true, and returns how many it removed.
func (c *Cache) Delete(ctx context.Context, all bool, keys ...string) (int, error) {
	if c.Path == "" {
		return 0, nil
	}
	gone := func(e entry) bool { return all || slices.Contains(keys, e.Key) }
	if !slices.ContainsFunc(c.read().Credentials, gone) {
		return 0, nil
	}
	deleted := 0
	err := cachefile.Change(ctx, c.file(), func(cached *file) bool {
		before := len(cached.Credentials)
		cached.Credentials = slices.DeleteFunc(cached.Credentials, gone)
		deleted = before - len(cached.Credentials)
		return deleted > 0
	})
	return deleted, err
}

// Alone waits until no other process exchanges a token for the credential under key, and blocks others until unlock is
// called. Without a cache it does nothing.
func (c *Cache) Alone(ctx context.Context, key string) (unlock func(), err error) {
	if c.Path == "" {
		return func() {}, nil
	}
	// The first digit of the key selects one of sixteen lock files. Keys change with every token, so one lock file per
	// key would leave more and more files behind.
	return c.file().LockOperation(ctx, "exchange-"+key[:1])
}

func (c *Cache) file() cachefile.File { return cachefile.File{Path: c.Path, Kind: "CredentialCache"} }

func (c *Cache) read() *file { return cachefile.Read[file](c.file()) }

// usable reports whether the credential is fresh enough to use at time now.
func (e *entry) usable(now time.Time) bool {
	if e.Credential == nil || e.Credential.ExpirationTimestamp.IsZero() || e.CreationTimestamp.IsZero() {
		return false
	}
	expiry := e.Credential.ExpirationTimestamp.Time
	margin := min(maxMargin, expiry.Sub(e.CreationTimestamp.Time)/10)
	return now.Before(expiry.Add(-margin)) && now.Sub(e.CreationTimestamp.Time) < maxAge
}
