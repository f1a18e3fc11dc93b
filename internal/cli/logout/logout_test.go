package logout

import (
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
	"github.com/pinniped-toolkit/pinniped/test/oidctest"
)

// TestRevokesWhatIsThere checks that a session that was renewed while logout waited is revoked with its new tokens.
func TestRevokesWhatIsThere(t *testing.T) {
	t.Parallel()
	issuer, err := oidctest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(issuer.Close)
	var revoked []string
	issuer.Fault = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/revoke" {
			revoked = append(revoked, r.PostForm.Get("token"))
		}
		return false
	}
	cache := &sessioncache.Cache{Path: filepath.Join(t.TempDir(), "sessions.yaml"), Now: time.Now}
	key := sessioncache.Key{Issuer: issuer.URL, ClientID: oidctest.ClientID}
	put := func(token string) {
		tokens := sessioncache.Tokens{Refresh: &sessioncache.RefreshToken{Token: token}}
		if err := cache.Put(t.Context(), key, tokens); err != nil {
			t.Fatal(err)
		}
	}
	put("read before the lock")
	read := cache.Sessions()[0]
	put("renewed meanwhile")
	o := &Options{Progress: &ui.Progress{}, Now: time.Now}
	ended, err := o.end(t.Context(), ending{cache, read, issuer.CA.CertPEM()})
	if err != nil || ended.Revocation != result.RevocationDone {
		t.Fatalf("want the session ended, got %+v, %v", ended, err)
	}
	if !slices.Equal(revoked, []string{"renewed meanwhile"}) || len(cache.Sessions()) != 0 {
		t.Errorf("want the newer token revoked, got %q; sessions: %v", revoked, cache.Sessions())
	}
}
