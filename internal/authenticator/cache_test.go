package authenticator

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"
)

// named authenticates every token, even an empty one.
type named string

func (n named) AuthenticateToken(context.Context, string) (user.Info, bool, error) {
	return &user.DefaultInfo{Name: string(n)}, true, nil
}

func TestCache(t *testing.T) {
	t.Parallel()
	const group = "authentication.concierge.example.com"
	cache := NewCache(group)
	cache.Put("WebhookAuthenticator", "one", named("first"))
	cache.Put("WebhookAuthenticator", "one", named("second"))
	cache.Put("JWTAuthenticator", "one", named("jwt"))
	cache.Put("WebhookAuthenticator", "gone", named("gone"))
	if cache.Suspend("WebhookAuthenticator", "away", "cannot dial") || cache.Remove("WebhookAuthenticator", "never") {
		t.Error("want neither to have been usable")
	}
	if !cache.Remove("WebhookAuthenticator", "gone") || cache.Remove("WebhookAuthenticator", "gone") {
		t.Error("want the first removal to find it, and the second not to")
	}
	ref := func(kind, name string) corev1.TypedLocalObjectReference {
		return corev1.TypedLocalObjectReference{APIGroup: ptr.To(group), Kind: kind, Name: name}
	}
	elsewhere, nowhere := ref("WebhookAuthenticator", "one"), ref("WebhookAuthenticator", "one")
	elsewhere.APIGroup, nowhere.APIGroup = ptr.To("authentication.concierge.pinniped.dev"), nil
	for _, test := range []struct {
		name  string
		ref   corev1.TypedLocalObjectReference
		token string
		want  string // "" for unauthenticated
		err   error
	}{
		{"finds the newest", ref("WebhookAuthenticator", "one"), "t", "second", nil},
		{"tells kinds apart", ref("JWTAuthenticator", "one"), "t", "jwt", nil},
		{"gives no blank token away", ref("JWTAuthenticator", "one"), " \t\n", "", nil},
		{"does not find another suffix", elsewhere, "t", "", ErrNoSuchAuthenticator},
		{"does not find one without a group", nowhere, "t", "", ErrNoSuchAuthenticator},
		{"says that one is not ready", ref("WebhookAuthenticator", "away"), "t", "", ErrNotReady},
		{"does not find what was removed", ref("WebhookAuthenticator", "gone"), "t", "", ErrNoSuchAuthenticator},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			info, authenticated, err := cache.AuthenticateToken(t.Context(), test.ref, test.token)
			if !errors.Is(err, test.err) || authenticated != (test.want != "") {
				t.Fatalf("authenticated %v, error %v", authenticated, err)
			}
			got := ""
			if info != nil {
				got = info.GetName()
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCacheIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	cache := NewCache("g")
	ref := corev1.TypedLocalObjectReference{APIGroup: ptr.To("g"), Kind: "k", Name: "n"}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				cache.Put("k", "n", named("x"))
				if info, ok, err := cache.AuthenticateToken(t.Context(), ref, "t"); err == nil && (!ok || info.GetName() != "x") {
					t.Errorf("got %v, %v", info, ok)
				}
				cache.Remove("k", "n")
			}
		})
	}
	group.Wait()
}
