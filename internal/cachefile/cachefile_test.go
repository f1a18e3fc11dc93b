package cachefile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"

	"github.com/pinniped-toolkit/pinniped/internal/credentialcache"
	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
)

// caches maps the caches that use this package to a function that writes one with the given clock. Tests use the clock
// to act during the write.
func caches(t *testing.T) map[string]func(path string, clock func() time.Time) error {
	t.Helper()
	return map[string]func(path string, clock func() time.Time) error{
		"sessions": func(path string, clock func() time.Time) error {
			cache := &sessioncache.Cache{Path: path, Now: clock}
			return cache.Put(t.Context(), sessioncache.Key{Issuer: "secret"}, sessioncache.Tokens{})
		},
		"credentials": func(path string, clock func() time.Time) error {
			cache := &credentialcache.Cache{Path: path, Now: clock}
			expires := metav1.NewTime(time.Now().Add(time.Hour))
			return cache.Put(t.Context(), "key", &clientauthenticationv1beta1.ExecCredentialStatus{
				Token: "secret", ExpirationTimestamp: &expires,
			}, nil)
		},
	}
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestALinkLeadsNowhere checks that links that another user puts into the cache's directory are not followed.
func TestALinkLeadsNowhere(t *testing.T) {
	t.Parallel()
	const precious = "export PATH=/usr/bin\n"
	for kind, put := range caches(t) {
		for _, test := range []struct {
			name string
			// attack runs before the write, or during it if during is set.
			attack func(t *testing.T, path, victim string)
			during bool
		}{
			{name: "a link in its place", attack: link},
			{name: "a link that takes its place", attack: link, during: true},
			{name: "a link in place of its folder", attack: linkFolder, during: true},
		} {
			t.Run(kind+": "+test.name, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				path := filepath.Join(dir, "shared", "cache.yaml")
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.Mkdir(filepath.Join(dir, "home"), 0o700); err != nil {
					t.Fatal(err)
				}
				victim := write(t, filepath.Join(dir, "home", "cache.yaml"), precious)
				clock := time.Now
				if !test.during {
					test.attack(t, path, victim)
				} else {
					if err := put(path, time.Now); err != nil {
						t.Fatal(err)
					}
					clock = func() time.Time {
						test.attack(t, path, victim)
						return time.Now()
					}
				}
				err := put(path, clock)
				if content, reading := os.ReadFile(victim); reading != nil || string(content) != precious {
					t.Errorf("the file that the link leads to has %q, %v (writing: %v)", content, reading, err)
				}
			})
		}
		t.Run(kind+": a link in place of its lock", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, victim := filepath.Join(dir, "cache.yaml"), filepath.Join(dir, "nologin")
			if err := os.Symlink(victim, path+".lock"); err != nil {
				t.Fatal(err)
			}
			err := put(path, time.Now)
			if _, missing := os.Stat(victim); !os.IsNotExist(missing) {
				t.Errorf("the link made a file: %v (writing: %v)", missing, err)
			}
		})
		t.Run(kind+": a file that others can read", func(t *testing.T) {
			t.Parallel()
			path := write(t, filepath.Join(t.TempDir(), "cache.yaml"), "")
			if err := os.Chmod(path, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := put(path, time.Now); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("got %v, %v", info.Mode(), err)
			}
		})
		t.Run(kind+": a link to a cache", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, elsewhere := filepath.Join(dir, "cache.yaml"), filepath.Join(dir, "elsewhere.yaml")
			if err := put(elsewhere, time.Now); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(elsewhere, path); err != nil {
				t.Fatal(err)
			}
			if err := put(path, time.Now); err != nil {
				t.Fatal(err)
			}
			info, err := os.Lstat(path)
			content, reading := os.ReadFile(elsewhere)
			if err != nil || info.Mode()&os.ModeSymlink == 0 || reading != nil || !strings.Contains(string(content), "secret") {
				t.Errorf("want the link and the cache behind it, got %v, %v, %v", info.Mode(), err, reading)
			}
		})
	}
}

// TestNotesLeadNowhere checks that a link in place of the notes file is not followed.
func TestNotesLeadNowhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cache := &credentialcache.Cache{Path: filepath.Join(dir, "cache.yaml"), Now: time.Now}
	victim := filepath.Join(dir, "nologin")
	for _, kind := range []string{".asked", ".refused"} {
		if err := os.Symlink(victim, cache.Path+kind); err != nil {
			t.Fatal(err)
		}
	}
	cache.Asked("key", 1, &clientauthenticationv1beta1.ExecCredentialStatus{Token: "x"})
	cache.Refuse("key", 1, credentialcache.Refusal{Message: "no"})
	if _, err := os.Stat(victim); !os.IsNotExist(err) {
		t.Errorf("the link made a file: %v", err)
	}
}

func link(t *testing.T, path, victim string) {
	t.Helper()
	if target, _ := os.Readlink(path); target == victim {
		return
	}
	_ = os.Remove(path)
	if err := os.Symlink(victim, path); err != nil {
		t.Error(err)
	}
}

func linkFolder(t *testing.T, path, victim string) {
	t.Helper()
	folder := filepath.Dir(path)
	if _, err := os.Readlink(folder); err == nil {
		return
	}
	if err := os.Rename(folder, folder+".old"); err != nil {
		t.Error(err)
	}
	link(t, folder, filepath.Dir(victim))
}
