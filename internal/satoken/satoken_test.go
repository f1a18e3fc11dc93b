package satoken

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

type headerTripper struct {
	headers map[string][]string
	next    http.RoundTripper
}

func withHeaders(headers map[string][]string) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper { return &headerTripper{headers, next} }
}

func (h *headerTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	for name, values := range h.headers {
		request.Header[http.CanonicalHeaderKey(name)] = values
	}
	return h.next.RoundTrip(request)
}

func TestNamesOfObjects(t *testing.T) {
	t.Parallel()
	names := map[string]Identity{}
	for _, id := range []Identity{
		{Username: "ann"},
		{Username: "Ann"},
		{Username: "ann "},
		{Username: "an", UID: "n"},
		{Username: "ann", UID: "1"},
		{Username: "ann", Groups: []string{"a"}},
		{Username: "ann", Groups: []string{"a", "b"}},
		{Username: "ann", Authenticator: "JWTAuthenticator/people"},
		{Username: "ann\x00"},
		{Username: strings.Repeat("a", 10000)},
	} {
		name := id.name("users")
		if other, taken := names[name]; taken {
			t.Errorf("%+v and %+v have the same name", id, other)
		}
		names[name] = id
		if len(name) > 100 || !strings.HasPrefix(name, NamePrefix) {
			t.Errorf("got name %q", name)
		}
	}
	if (Identity{Username: "ann"}).name("a") == (Identity{Username: "ann"}).name("b") {
		t.Error("two installations share objects")
	}
	for _, bad := range []Identity{
		{}, {Username: "ann", Groups: []string{""}}, {Username: "ann", Extra: map[string][]string{"a": {""}}},
	} {
		if _, err := bad.normal(); err == nil {
			t.Errorf("%+v is carried", bad)
		}
	}
}

// TestATokensIDIsNotOfTheUser: each token of an issuer has another ID, but all sessions of a user share a role.
func TestATokensIDIsNotOfTheUser(t *testing.T) {
	t.Parallel()
	headers := func(id string) map[string][]string {
		user := must.Get(Identity{Username: "ann", Extra: map[string][]string{
			"Authentication.kubernetes.io/Credential-ID": {"JTI=" + id}, "example.com/team": {"blue"},
		}}.normal())(t)
		return user.headers()
	}
	if diff := cmp.Diff(headers("1"), headers("2")); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
	want := map[string][]string{"Impersonate-User": {"ann"}, "Impersonate-Extra-example.com%2Fteam": {"blue"}}
	if diff := cmp.Diff(want, headers("1")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// reviewsOnce fakes an API server that denies one access review and does not respond to the next.
type reviewsOnce struct{ asked int }

// RoundTrip implements http.RoundTripper.
func (r *reviewsOnce) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.asked++; r.asked > 1 {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	const denied = `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","status":{"allowed":false}}`
	return &http.Response{
		StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
		Body: io.NopCloser(strings.NewReader(denied)),
	}, nil
}

// TestNoEffectIsSaid times out during a review. The error is that of the review before.
func TestNoEffectIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &reviewsOnce{}
		client, err := kubernetes.NewForConfigAndClient(&rest.Config{QPS: -1}, &http.Client{Transport: api})
		if err != nil {
			t.Fatal(err)
		}
		err = (&Accounts{Reviewer: client}).waitForEffect(t.Context(), &corev1.ServiceAccount{}, permission{}, true)
		if !errors.Is(err, errNoEffect) || api.asked != 2 {
			t.Errorf("want %q after two reviews, got %v after %d", errNoEffect, err, api.asked)
		}
	})
}

// TestAccountsAreDeletedOnlyIfTheStrategyIsOffNow turns the strategy off with a stale CredentialIssuer.
func TestAccountsAreDeletedOnlyIfTheStrategyIsOffNow(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]bool{"off": true, "on again": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := fake.NewClientset()
			b := NewBackend(BackendOptions{
				Manager: cluster, Reviewer: cluster, Namespace: "users",
				IsLeader: func() bool { return true },
				StillOff: func(context.Context) (bool, error) { return off, nil },
				Changed:  func() {},
			})
			b.Configure(Settings{Used: true})
			must.Do(t, b.sync(t.Context()))
			if collected := len(cluster.Actions()) > 0; collected != off || b.State().Cleaning == off {
				t.Errorf("collected: %v; the state is %+v", collected, b.State())
			}
		})
	}
}
