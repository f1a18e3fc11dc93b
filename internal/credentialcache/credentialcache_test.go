package credentialcache_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/credentialcache"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// writerVariable makes this test binary a process that fills a cache. Its value has the path, the number of the process
// and the number of entries.
const writerVariable = "CREDENTIALCACHE_TEST_WRITER"

func TestMain(m *testing.M) {
	if job := os.Getenv(writerVariable); job != "" {
		parts := strings.Split(job, "|")
		count, err := strconv.Atoi(parts[2])
		if err == nil {
			err = fill(context.Background(), parts[0], parts[1], count)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func fill(ctx context.Context, path, writer string, count int) error {
	cache := &credentialcache.Cache{Path: path, Now: time.Now}
	for i := range count {
		key := writer + "-" + strconv.Itoa(i)
		if err := cache.Put(ctx, key, credential(time.Now().Add(5*time.Minute), key), nil); err != nil {
			return err
		}
		if got := cache.Get(key); got == nil || got.Token != key {
			return fmt.Errorf("want the credential just put under %q, got %+v", key, got)
		}
	}
	return nil
}

func credential(expiry time.Time, token string) *clientauthenticationv1beta1.ExecCredentialStatus {
	at := metav1.NewTime(expiry)
	return &clientauthenticationv1beta1.ExecCredentialStatus{ExpirationTimestamp: &at, Token: token}
}

// TestManyWriters checks that no entry is lost and no reader sees a partial file while many processes and goroutines
// write.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	const processes, goroutines, each = 3, 5, 6
	path := filepath.Join(t.TempDir(), "pinniped", "credentials.yaml")
	var writers sync.WaitGroup
	for i := range processes {
		writers.Go(func() {
			command := exec.CommandContext(t.Context(), os.Args[0])
			command.Env = append(os.Environ(), fmt.Sprintf("%s=%s|process%d|%d", writerVariable, path, i, each))
			if output, err := command.CombinedOutput(); err != nil {
				t.Errorf("process %d: %v: %s", i, err, output)
			}
		})
	}
	for i := range goroutines {
		writers.Go(func() {
			if err := fill(t.Context(), path, fmt.Sprintf("goroutine%d", i), each); err != nil {
				t.Errorf("goroutine %d: %v", i, err)
			}
		})
	}
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if content, err := os.ReadFile(path); err == nil {
				var file map[string]any
				if err := yaml.Unmarshal(content, &file); err != nil || file["kind"] != "CredentialCache" {
					t.Errorf("a reader saw a part of the file: %v", err)
					return
				}
			}
		}
	})
	writers.Wait()
	close(done)
	reader.Wait()

	cache := &credentialcache.Cache{Path: path, Now: time.Now}
	for i := range each {
		for p := range processes {
			if key := fmt.Sprintf("process%d-%d", p, i); cache.Get(key) == nil {
				t.Errorf("the entry %q is lost", key)
			}
		}
		for g := range goroutines {
			if key := fmt.Sprintf("goroutine%d-%d", g, i); cache.Get(key) == nil {
				t.Errorf("the entry %q is lost", key)
			}
		}
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name     string
		lifetime time.Duration
		after    time.Duration
		want     bool
	}{
		{name: "is used at once", lifetime: 5 * time.Minute, want: true},
		{
			name: "is used until shortly before its expiry", lifetime: 5 * time.Minute, after: 4*time.Minute + 29*time.Second,
			want: true,
		},
		{
			name: "is not used when it expires in half a minute", lifetime: 5 * time.Minute,
			after: 4*time.Minute + 30*time.Second,
		},
		{name: "is not used when it expired", lifetime: 5 * time.Minute, after: 6 * time.Minute},
		{name: "has a tenth as margin of a short life", lifetime: 50 * time.Second, after: 44 * time.Second, want: true},
		{name: "has no more than that", lifetime: 50 * time.Second, after: 45 * time.Second},
		{name: "is not used when it expired before it came", lifetime: -time.Second},
		{name: "is used for an hour", lifetime: 24 * time.Hour, after: 59 * time.Minute, want: true},
		{name: "is not used for longer", lifetime: 24 * time.Hour, after: time.Hour},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			now := start
			cache := &credentialcache.Cache{Path: filepath.Join(t.TempDir(), "c.yaml"), Now: func() time.Time { return now }}
			must.Do(t, cache.Put(t.Context(), "key", credential(start.Add(test.lifetime), "token"), nil))
			now = now.Add(test.after)
			if got := cache.Get("key") != nil; got != test.want {
				t.Errorf("want %v, got %v", test.want, got)
			}
		})
	}
}

// TestFormat compares with the exact file that Pinniped's CLI v0.47 reads and writes.
func TestFormat(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	path := filepath.Join(t.TempDir(), "c.yaml")
	before := `apiVersion: config.supervisor.pinniped.dev/v1alpha1
credentials:
- creationTimestamp: "2026-11-21T10:00:00Z"
  credential:
    expirationTimestamp: "2026-11-21T10:05:00Z"
    token: expired
  key: old
- creationTimestamp: "2026-11-21T11:59:00Z"
  credential:
    clientCertificateData: certificate
    clientKeyData: key
    expirationTimestamp: "2026-11-21T12:04:00Z"
  key: theirs
  lastUsedTimestamp: "2026-11-21T11:59:30Z"
- key: half
kind: CredentialCache
`
	if err := os.WriteFile(path, []byte(before), 0o644); err != nil { // Put must make it private
		t.Fatal(err)
	}
	cache := &credentialcache.Cache{Path: path, Now: func() time.Time { return now }}
	if got := cache.Get("theirs"); got == nil || got.ClientKeyData != "key" {
		t.Fatalf("want the other CLI's credential, got %+v", got)
	}
	if got := cache.Get("half"); got != nil {
		t.Fatalf("want nothing from an entry without credential, got %+v", got)
	}
	must.Do(t, cache.Put(t.Context(), "ours", credential(now.Add(5*time.Minute), "token"), nil))
	want := `apiVersion: config.supervisor.pinniped.dev/v1alpha1
credentials:
- creationTimestamp: "2026-11-21T11:59:00Z"
  credential:
    clientCertificateData: certificate
    clientKeyData: key
    expirationTimestamp: "2026-11-21T12:04:00Z"
  key: theirs
  lastUsedTimestamp: "2026-11-21T11:59:30Z"
- creationTimestamp: "2026-11-21T12:00:00Z"
  credential:
    expirationTimestamp: "2026-11-21T12:05:00Z"
    token: token
  key: ours
  lastUsedTimestamp: "2026-11-21T12:00:00Z"
kind: CredentialCache
`
	got := must.Get(os.ReadFile(path))(t)
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("want mode 0600, got %v, %v", info.Mode(), err)
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	cluster := &clientauthenticationv1beta1.Cluster{
		Server:                   "https://kube.example.com",
		CertificateAuthorityData: []byte("ca"),
	}
	// The sums were computed with sha256sum from the JSON text that the contract describes.
	for _, test := range []struct {
		name    string
		cluster *clientauthenticationv1beta1.Cluster
		want    string
	}{
		{name: "has null without a cluster", want: "12c96184d478d671775ba50a0697444e86bba95f55a3d3540ae07dce814299f9"},
		{name: "has the cluster", cluster: cluster, want: "9af149b57eb729c7e0200598065d776af4a8d99affe3c68f862881cbfc6728a9"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := credentialcache.Key([]string{"login", "static", "--token-env=TOKEN"}, "secret", test.cluster)
			if err != nil || got != test.want {
				t.Errorf("want %s, got %s, %v", test.want, got, err)
			}
		})
	}
	other, err := credentialcache.Key([]string{"login", "static", "--token-env=TOKEN"}, "other", nil)
	if err != nil || other == "12c96184d478d671775ba50a0697444e86bba95f55a3d3540ae07dce814299f9" {
		t.Errorf("want another key for another token, got %s, %v", other, err)
	}
	if text, err := json.Marshal(cluster); err != nil || !strings.Contains(string(text), `"config":null`) {
		t.Errorf("want the cluster's config as null, as in the sums above, got %s, %v", text, err)
	}
}

func TestNeverInTheWay(t *testing.T) {
	t.Parallel()
	now := time.Now()
	clock := func() time.Time { return now }
	good := credential(now.Add(time.Minute), "token")

	off := &credentialcache.Cache{Now: clock}
	if err := off.Put(t.Context(), "key", good, nil); err != nil || off.Get("key") != nil {
		t.Errorf("want a cache without path to keep nothing, got %v", err)
	}
	noExpiry := &credentialcache.Cache{Path: filepath.Join(t.TempDir(), "c.yaml"), Now: clock}
	forEver := &clientauthenticationv1beta1.ExecCredentialStatus{Token: "for ever"}
	must.Do(t, noExpiry.Put(t.Context(), "key", forEver, nil))
	if _, err := os.Stat(noExpiry.Path); !os.IsNotExist(err) {
		t.Errorf("want no file for a credential without expiry, got %v", err)
	}
	for name, content := range map[string]string{
		"other version": "apiVersion: config.supervisor.pinniped.dev/v2\nkind: CredentialCache\ncredentials: []\n",
		"not YAML":      "{[",
		"binary":        "\x00\x01",
	} {
		t.Run("starts again after "+name, func(t *testing.T) {
			t.Parallel()
			cache := &credentialcache.Cache{Path: filepath.Join(t.TempDir(), "c.yaml"), Now: clock}
			must.Do(t, os.WriteFile(cache.Path, []byte(content), 0o600))
			if cache.Get("key") != nil {
				t.Error("want nothing from a file that is not a cache")
			}
			if err := cache.Put(t.Context(), "key", good, nil); err != nil || cache.Get("key") == nil {
				t.Errorf("want the credential kept, got %v", err)
			}
		})
	}
	nowhere := &credentialcache.Cache{Path: filepath.Join(plainFile(t), "c.yaml"), Now: clock}
	if err := nowhere.Put(t.Context(), "key", good, nil); err == nil || nowhere.Get("key") != nil {
		t.Error("want an error when the directory cannot be made, and a miss")
	}
}

// plainFile returns the path of a new file, for tests that need a file where a directory is expected.
func plainFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(path, nil, 0o600))
	return path
}

func TestAsked(t *testing.T) {
	t.Parallel()
	expiry := time.Now().Add(time.Minute)
	first, second := credential(expiry, "first"), credential(expiry, "second")
	key := strings.Repeat("ab", 32)
	cache := &credentialcache.Cache{Path: filepath.Join(t.TempDir(), "c.yaml"), Now: time.Now}
	for i, step := range []struct {
		key     string
		process int
		other   bool
		want    bool
	}{
		{key: key, process: 1},
		{key: key, process: 1, want: true},
		{key: key, process: 11},
		{key: key, process: 1, other: true},
		{key: "cd" + key, process: 1},
		{key: key, process: 1, want: true},
		{key: key, process: 1, other: true, want: true},
	} {
		asked := first
		if step.other {
			asked = second
		}
		if got := cache.Asked(step.key, step.process, asked); got != step.want {
			t.Errorf("step %d: want %v, got %v", i, step.want, got)
		}
	}
	path := cache.Path + ".asked"
	if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), "first") {
		t.Errorf("want notes without secrets, got %s, %v", text, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("want mode 0600, got %v, %v", info.Mode(), err)
	}
	for process := range 2000 {
		cache.Asked(key, process, first)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 20<<10 {
		t.Errorf("want a small file, got %d bytes, %v", info.Size(), err)
	}
	nowhere := &credentialcache.Cache{Path: filepath.Join(plainFile(t), "c.yaml"), Now: time.Now}
	if (&credentialcache.Cache{}).Asked(key, 1, first) || nowhere.Asked(key, 1, first) || nowhere.Asked(key, 1, first) {
		t.Error("want nothing noted where there is no place for it")
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	now := time.Now()
	cache := &credentialcache.Cache{
		Path: filepath.Join(t.TempDir(), "new", "c.yaml"), Now: func() time.Time { return now },
	}
	key := strings.Repeat("ab", 32)
	why := credentialcache.Refusal{Message: "access_denied:\ncancelled", Hint: "try again"}
	if got := cache.Refused(key, 7); got != nil {
		t.Errorf("got %v", got)
	}
	cache.Refuse(key, 7, why)
	if got := cache.Refused(key, 7); got == nil || *got != why {
		t.Errorf("got %v", got)
	}
	for name, got := range map[string]*credentialcache.Refusal{
		"another process": cache.Refused(key, 77), "another login": cache.Refused("cd"+key, 7),
	} {
		if got != nil {
			t.Errorf("%s: got %v", name, got)
		}
	}
	now = now.Add(20 * time.Second)
	if got := cache.Refused(key, 7); got != nil {
		t.Errorf("later: got %v", got)
	}
}

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

func TestDelete(t *testing.T) {
	t.Parallel()
	cache := &credentialcache.Cache{Path: filepath.Join(t.TempDir(), "c.yaml"), Now: time.Now}
	headers := map[string][]string{"Impersonate-User": {"ann"}}
	for _, key := range []string{"a", "b", "c"} {
		must.Do(t, cache.Put(t.Context(), key, credential(time.Now().Add(5*time.Minute), key), headers))
	}
	if _, got := cache.GetWithHeaders("a"); !cmp.Equal(got, headers) {
		t.Errorf("want the headers of the credential, got %v", got)
	}
	for i, step := range []struct {
		all  bool
		want int
	}{{want: 1}, {want: 0}, {all: true, want: 2}} {
		if got, err := cache.Delete(t.Context(), step.all, "a"); err != nil || got != step.want {
			t.Errorf("step %d: want %d entries deleted, got %d, %v", i, step.want, got, err)
		}
	}
}
