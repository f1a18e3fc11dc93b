package sessioncache_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
)

func key(issuer string) sessioncache.Key {
	return sessioncache.Key{
		Issuer:      issuer,
		ClientID:    "pinniped-cli",
		Scopes:      []string{"groups", "openid"},
		RedirectURI: "http://localhost:0/callback",
	}
}

// theirs is a file as Pinniped's CLI v0.47 writes it.
const theirs = `apiVersion: config.supervisor.pinniped.dev/v1alpha1
kind: SessionCache
sessions:
- creationTimestamp: "2026-05-01T10:00:00Z"
  key:
    clientID: pinniped-cli
    issuer: https://old.example.com
    redirect_uri: http://localhost:0/callback
    scopes: [openid]
  lastUsedTimestamp: "2026-05-02T10:00:00Z"
  tokens:
    refresh:
      token: long unused
- creationTimestamp: "2026-11-21T10:00:00Z"
  key:
    clientID: pinniped-cli
    issuer: https://issuer.example.com
    redirect_uri: http://localhost:0/callback
    scopes:
    - groups
    - openid
  lastUsedTimestamp: "2026-11-21T11:00:00Z"
  tokens:
    access:
      expiryTimestamp: "2026-11-21T12:02:00Z"
      token: access
      type: Bearer
    id:
      claims:
        exp: 1795263000
        sub: ann
      expiryTimestamp: "2026-11-21T13:30:00Z"
      token: id
    refresh:
      token: refresh
`

// TestFormat compares with the exact file that both CLIs read and write.
func TestFormat(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	path := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(path, []byte(theirs), 0o600); err != nil {
		t.Fatal(err)
	}
	cache := &sessioncache.Cache{Path: path, Now: func() time.Time { return now }}
	got := cache.Get(t.Context(), key("https://issuer.example.com"))
	want := &sessioncache.Tokens{
		Access:  &sessioncache.AccessToken{Token: "access", Type: "Bearer", Expiry: metav1.NewTime(now.Add(2 * time.Minute))},
		Refresh: &sessioncache.RefreshToken{Token: "refresh"},
		ID: &sessioncache.IDToken{
			Token:  "id",
			Expiry: metav1.NewTime(now.Add(90 * time.Minute)),
			Claims: map[string]any{"exp": float64(1795263000), "sub": "ann"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("tokens (-want +got):\n%s", diff)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != theirs {
		t.Errorf("want nothing written for a session that was used an hour ago, got %s, %v", text, err)
	}

	second := key("https://second.example.com")
	second.UpstreamProviderName = "corporate"
	if err := cache.Put(
		t.Context(),
		second,
		sessioncache.Tokens{Refresh: &sessioncache.RefreshToken{Token: "r"}},
	); err != nil {
		t.Fatal(err)
	}
	kept := theirs[strings.Index(theirs, `- creationTimestamp: "2026-11-21T10`):]
	wantText := `apiVersion: config.supervisor.pinniped.dev/v1alpha1
kind: SessionCache
sessions:
` + kept + `- creationTimestamp: "2026-11-21T12:00:00Z"
  key:
    clientID: pinniped-cli
    issuer: https://second.example.com
    redirect_uri: http://localhost:0/callback
    scopes:
    - groups
    - openid
    upstream_provider_name: corporate
  lastUsedTimestamp: "2026-11-21T12:00:00Z"
  tokens:
    refresh:
      token: r
`
	text, err := os.ReadFile(path)
	if diff := cmp.Diff(wantText, string(text)); err != nil || diff != "" {
		t.Errorf("file, %v (-want +got):\n%s", err, diff)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("want mode 0600, got %v, %v", info.Mode(), err)
	}
}

func TestUse(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	cache := &sessioncache.Cache{
		Path: filepath.Join(t.TempDir(), "pinniped", "s.yaml"),
		Now:  func() time.Time { return now },
	}
	if err := cache.Put(t.Context(), key("a"), sessioncache.Tokens{}); err != nil {
		t.Fatal(err)
	}
	for range 3 { // a session used every two months stays
		now = now.Add(60 * 24 * time.Hour)
		if cache.Get(t.Context(), key("a")) == nil {
			t.Fatal("the session is gone")
		}
		if used := cache.Sessions()[0].LastUsedTimestamp; !used.Equal(&metav1.Time{Time: now}) {
			t.Errorf("want the use noted, got %s", used)
		}
	}
	if created := cache.Sessions()[0].CreationTimestamp; created.Month() != time.November {
		t.Errorf("want the time of creation kept, got %s", created)
	}
	now = now.Add(91 * 24 * time.Hour)
	if err := cache.Put(t.Context(), key("b"), sessioncache.Tokens{}); err != nil {
		t.Fatal(err)
	}
	if sessions := cache.Sessions(); len(sessions) != 1 || sessions[0].Key.Issuer != "b" {
		t.Errorf("want the unused session gone, got %+v", sessions)
	}
	if taken, err := cache.Take(t.Context(), key("b")); err != nil || taken == nil || len(cache.Sessions()) != 0 {
		t.Errorf("want no session, got %+v, %v", cache.Sessions(), err)
	}
	if taken, err := cache.Take(t.Context(), key("b")); err != nil || taken != nil {
		t.Errorf("want nothing to take, got %v, %v", taken, err)
	}
}

// TestTouch checks that touch keeps the changes of another process that renews or ends the session after it was read.
func TestTouch(t *testing.T) {
	t.Parallel()
	refresh := func(token string) sessioncache.Tokens {
		return sessioncache.Tokens{Refresh: &sessioncache.RefreshToken{Token: token}}
	}
	for name, meanwhile := range map[string]func(*testing.T, *sessioncache.Cache){
		"renewed": func(t *testing.T, c *sessioncache.Cache) {
			t.Helper()
			if err := c.Put(t.Context(), key("a"), refresh("new")); err != nil {
				t.Error(err)
			}
		},
		"ended": func(t *testing.T, c *sessioncache.Cache) {
			t.Helper()
			if _, err := c.Take(t.Context(), key("a")); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "s.yaml")
			now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
			other := &sessioncache.Cache{Path: path, Now: func() time.Time { return now }}
			if err := other.Put(t.Context(), key("a"), refresh("old")); err != nil {
				t.Fatal(err)
			}
			now = now.Add(48 * time.Hour)
			var once sync.Once
			cache := &sessioncache.Cache{Path: path, Now: func() time.Time { // called after the read, before the lock
				once.Do(func() { meanwhile(t, other) })
				return now
			}}
			cache.Get(t.Context(), key("a"))
			var got []string
			for _, s := range other.Sessions() {
				got = append(got, s.Tokens.Refresh.Token)
			}
			want := map[string][]string{"renewed": {"new"}}[name]
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("refresh tokens (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSpoiled checks that each file that is not ours is a cache miss, and is replaced.
func TestSpoiled(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"not YAML": "sessions: [{", "another kind": "apiVersion: config.supervisor.pinniped.dev/v1alpha1\nkind: " +
			"CredentialCache\nsessions: [{key: {issuer: a}}]",
		"another version": "apiVersion: v2\nkind: SessionCache\nsessions: [{key: {issuer: a}}]", "empty": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := &sessioncache.Cache{Path: filepath.Join(t.TempDir(), "s.yaml"), Now: time.Now}
			if err := os.WriteFile(cache.Path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if sessions := cache.Sessions(); len(sessions) != 0 {
				t.Errorf("want a miss, got %+v", sessions)
			}
			if err := cache.Put(t.Context(), key("a"), sessioncache.Tokens{}); err != nil ||
				cache.Get(t.Context(), key("a")) == nil {
				t.Errorf("want a new file, got %v", err)
			}
		})
	}
}

func TestWithoutFile(t *testing.T) {
	t.Parallel()
	cache := &sessioncache.Cache{Now: time.Now}
	if err := cache.Put(
		t.Context(),
		key("a"),
		sessioncache.Tokens{},
	); err != nil || cache.Get(t.Context(), key("a")) != nil ||
		cache.Sessions() != nil {
		t.Errorf("want nothing kept, got %v", err)
	}
	unlock, err := cache.Alone(t.Context(), key("a"))
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestManyWriters(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.yaml")
	var writers sync.WaitGroup
	for i := range 40 {
		writers.Go(func() {
			cache := &sessioncache.Cache{Path: path, Now: time.Now}
			unlock, err := cache.Alone(t.Context(), key(strconv.Itoa(i%4)))
			if err != nil {
				t.Error(err)
				return
			}
			defer unlock()
			if err := cache.Put(t.Context(), key(strconv.Itoa(i)), sessioncache.Tokens{}); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	if sessions := (&sessioncache.Cache{Path: path, Now: time.Now}).Sessions(); len(sessions) != 40 {
		t.Errorf("want 40 sessions, got %d", len(sessions))
	}
}
