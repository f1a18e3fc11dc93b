package satoken

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
