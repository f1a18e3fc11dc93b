package credentialcache_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/credentialcache"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// FuzzCache reads and changes cache files with arbitrary content. Get never returns an expired credential, and returns
// what Put has stored.
func FuzzCache(f *testing.F) {
	const head = "apiVersion: config.supervisor.pinniped.dev/v1alpha1\nkind: CredentialCache\ncredentials:\n"
	f.Add(
		[]byte(
			head+"- key: ab\n  creationTimestamp: \"2026-01-01T00:00:00Z\"\n  lastUsedTimestamp: \"2026-01-01T00:00:00Z\"\n"+
				"  credential: {expirationTimestamp: \"2026-01-01T00:05:00Z\", token: t}\n",
		),
		"ab",
	)
	f.Add(
		[]byte(
			head+"- {key: ab, credential: null}\n- {key: ab, creationTimestamp: \"9999-01-01T00:00:00Z\", credential: {expirationTimestamp: \"9999-12-31T00:00:00Z\"}}\n",
		),
		"ab",
	)
	f.Add([]byte(head+"- &a [*a]\n"), "")
	f.Add([]byte("\x00"), "ab")
	now := time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, content []byte, key string) {
		if strings.Trim(key, "0123456789abcdef") != "" {
			return // Key returns only hexadecimal
		}
		path := filepath.Join(t.TempDir(), "credentials.yaml")
		must.Do(t, os.WriteFile(path, content, 0o600))
		cache := &credentialcache.Cache{Path: path, Now: func() time.Time { return now }}
		before := cache.Get(key)
		if before != nil && !before.ExpirationTimestamp.After(now) {
			t.Errorf("want nothing that has expired, got a credential until %s", before.ExpirationTimestamp)
		}
		other := key + "-other"
		want := credential(now.Add(5*time.Minute), "token")
		must.Do(t, cache.Put(t.Context(), other, want, nil))
		if got := cache.Get(other); got == nil || got.Token != want.Token ||
			!got.ExpirationTimestamp.Equal(want.ExpirationTimestamp) {
			t.Errorf("want the credential just put, got %v", got)
		}
		if diff := cmp.Diff(before, cache.Get(key)); diff != "" {
			t.Errorf("another credential changed (-before +after):\n%s", diff)
		}
	})
}
