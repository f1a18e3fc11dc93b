package identity

import (
	"context"
	"fmt"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

// TestBoundedCaches puts more into each cache than it holds.
func TestBoundedCaches(t *testing.T) {
	t.Parallel()
	controller := flowcontrol.New(flowcontrol.LimitsFor(flowcontrol.DefaultMemory, 2))
	access := NewAccessReviewer(nil, controller, clock.RealClock{}, time.Minute, time.Minute)
	tokens := NewTokenReviewer(nil, controller, clock.RealClock{})
	for name, one := range map[string]struct {
		cache *cache.LRUExpireCache
		most  int
	}{
		"access reviews":             {access.kept, maxDecisions},
		"of unauthenticated clients": {access.apart, maxUnauthenticated},
		"refused tokens":             {tokens.apart, maxTokens},
		"token reviews":              {tokens.kept, maxTokens},
	} {
		for i := range one.most + 10 {
			one.cache.Add(i, nil, time.Minute)
		}
		if got := len(one.cache.Keys()); got != one.most {
			t.Errorf("%s: want %d kept, got %d", name, one.most, got)
		}
	}
}

// TestBadTokensPushOutNoGoodOnes fills the caches with invalid tokens, and with questions about unauthenticated
// clients. A valid token and the permissions of its user stay cached.
func TestBadTokensPushOutNoGoodOnes(t *testing.T) {
	t.Parallel()
	asked := 0
	controller := flowcontrol.New(flowcontrol.LimitsFor(flowcontrol.DefaultMemory, 2))
	tokens := NewTokenReviewer(func(_ context.Context, review, result runtime.Object) error {
		asked++
		good := review.(*authenticationv1.TokenReview).Spec.Token == "good"
		result.(*authenticationv1.TokenReview).Status.Authenticated = good
		return nil
	}, controller, clock.RealClock{})
	access := NewAccessReviewer(func(_ context.Context, _, result runtime.Object) error {
		asked++
		result.(*authorizationv1.SubjectAccessReview).Status.Allowed = true
		return nil
	}, controller, clock.RealClock{}, time.Hour, time.Hour)
	authenticate := func(token string) bool {
		_, ok, err := tokens.AuthenticateToken(t.Context(), token)
		return ok && err == nil
	}
	mayRead := func(name, path string) bool {
		verdict, _, err := access.Authorize(t.Context(),
			authorizer.AttributesRecord{User: &user.DefaultInfo{Name: name}, Verb: "get", Path: path})
		return verdict == authorizer.DecisionAllow && err == nil
	}
	if !authenticate("good") || !mayRead("jane", "/a") {
		t.Fatal("want the good token accepted, and its user allowed to read")
	}
	for i := range maxTokens + 1 {
		if authenticate(fmt.Sprint("bad-", i)) {
			t.Fatal("want a bad token refused")
		}
	}
	for i := range maxUnauthenticated + 1 {
		mayRead(user.Anonymous, fmt.Sprint("/", i))
	}
	before := asked
	if !authenticate("good") || !mayRead("jane", "/a") || asked != before {
		t.Errorf("want nothing asked again, got %d questions", asked-before)
	}
}
