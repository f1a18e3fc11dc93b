package credentialcache_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/credentialcache"
)

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
