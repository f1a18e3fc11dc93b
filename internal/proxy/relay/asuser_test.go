package relay

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/net/http/httpguts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

func named(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: groups}
}

func withExtra(key, value string) user.Info {
	return &user.DefaultInfo{Name: "jane", Extra: map[string][]string{key: {value}}}
}

func TestSetIdentity(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name           string
		user, original user.Info
		want           http.Header
		refused        string
	}{
		{
			name: "writes name, UID, groups and extras",
			user: &user.DefaultInfo{
				Name: "jané", UID: "u-1", Groups: []string{"a", "b c"},
				Extra: map[string][]string{"authentication.kubernetes.io/credential-id": {"X509SHA256=00"}, "two": {"1", "2"}},
			},
			want: http.Header{
				"Impersonate-User":      {"jané"},
				"Impersonate-Uid":       {"u-1"},
				"Impersonate-Group":     {"a", "b c"},
				"Impersonate-Extra-Two": {"1", "2"},
				"Impersonate-Extra-Authentication.kubernetes.io%2fcredential-Id": {"X509SHA256=00"},
			},
		},
		{
			name: "leaves out what the user does not have",
			user: &user.DefaultInfo{Name: "jane", Extra: map[string][]string{"empty": {}}},
			want: http.Header{"Impersonate-User": {"jane"}},
		},
		{
			name:     "describes the original user under nested impersonation",
			user:     &user.DefaultInfo{Name: "jane"},
			original: &user.DefaultInfo{Name: "root", UID: "0", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}},
			want: http.Header{
				"Impersonate-User": {"jane"},
				"Impersonate-Extra-Original-User-Info.impersonation-Proxy.concierge.pinniped.dev": {
					`{"username":"root","uid":"0","groups":["g"],"extra":{"k":["v"]}}`,
				},
			},
		},
		{name: "refuses a user without a name", user: &user.DefaultInfo{UID: "1"}, refused: "the user has no name"},
		{
			name: "refuses a line end in the name", user: named("jane\r\nImpersonate-Group: system:masters"),
			refused: "control characters",
		},
		{name: "refuses a NUL in the name", user: named("jane\x00"), refused: "control characters"},
		{name: "refuses a name that ends in space", user: named("jane "), refused: "begins or ends with space"},
		{
			name: "refuses a line end in the UID", user: &user.DefaultInfo{Name: "jane", UID: "a\nb"},
			refused: "UID contains control characters",
		},
		{
			name: "refuses a line end in a group", user: named("jane", "ok", "a\rb"),
			refused: "group contains control characters",
		},
		{name: "refuses a group without a name", user: named("jane", ""), refused: "a group has no name"},
		{
			name: "refuses a line end in an extra value and says which", user: withExtra("k", "a\nb"),
			refused: `extra key "k" contains control characters`,
		},
		{
			name: "refuses a line end in an extra key and says which", user: withExtra("a\r\nb", "v"),
			refused: `extra key "a\r\nb" contains control characters`,
		},
		{name: "refuses a NUL in an extra key", user: withExtra("a\x00", "v"), refused: "contains control characters"},
		{name: "refuses an empty extra key", user: withExtra("", "v"), refused: "an extra key is empty"},
		{
			name: "refuses a reserved extra key", user: withExtra("x.impersonation-proxy.concierge.pinniped.dev", "v"),
			refused: "unable to act as current user",
		},
		{
			name:    "refuses a reserved extra key in capitals",
			user:    withExtra("Original-User-Info.Impersonation-Proxy.concierge.pinniped.dev", "v"),
			refused: "unable to act as current user",
		},
		{
			name: "refuses an original user that cannot be carried", user: named("jane"), original: named("ro\not"),
			refused: "control characters",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := http.Header{}
			err := setIdentity(t.Context(), got, test.user, test.original)
			if test.refused != "" {
				if err == nil || !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), test.refused) {
					t.Fatalf("want an internal error with %q, got %v", test.refused, err)
				}
				return
			}
			must.Do(t, err)
			same.Values(t, "headers", test.want, got, cmpopts.EquateEmpty())
		})
	}
}

// TestPreventBlindForwarding tests the RoundTripper, the last line of defense, without the filters before it.
func TestPreventBlindForwarding(t *testing.T) {
	t.Parallel()
	sent := roundTrip(func(*http.Request) (*http.Response, error) { return nil, fmt.Errorf("a request was sent") })
	for name, req := range map[string]*http.Request{
		"no state": {Header: http.Header{}},
		"no user":  (&http.Request{Header: http.Header{}}).WithContext(request.With(t.Context(), &request.State{})),
	} {
		transport := &asUser{next: sent}
		res, err := transport.RoundTrip(req)
		if err == nil {
			_ = res.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "no user to impersonate") {
			t.Errorf("%s: want a refusal, got %v", name, err)
		}
	}
}

// decodeExtraKey decodes a header name as the API server does.
func decodeExtraKey(t *testing.T, header string) string {
	t.Helper()
	return must.Get(url.PathUnescape(strings.ToLower(strings.TrimPrefix(header, "Impersonate-Extra-"))))(t)
}

func FuzzExtraHeader(f *testing.F) {
	for _, seed := range []string{
		"a", "authentication.kubernetes.io/credential-id", "accessKeyId", "a_b", "%2f", "é", " ", "\r\n", "\x00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		header := extraHeader(key)
		for _, c := range []byte(header) {
			if c != '%' && c != '-' && c != '.' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
				t.Fatalf("header name %q has byte %q", header, c)
			}
		}
		if got := decodeExtraKey(t, header); got != key {
			t.Errorf("want key %q back, got %q", key, got)
		}
	})
}

// FuzzSetIdentity checks that an identity is either refused or preserved exactly.
func FuzzSetIdentity(f *testing.F) {
	f.Add("jane", "u-1", "dev", "accessKeyId", "v")
	f.Add("jane\r\nImpersonate-Group: x", "", "a\x00", "", " ")
	f.Add("é", "\t", "", "x.impersonation-proxy.concierge.pinniped.dev", "\x7f")
	f.Fuzz(func(t *testing.T, name, uid, group, key, value string) {
		header := http.Header{}
		who := &user.DefaultInfo{Name: name, UID: uid, Groups: []string{group}, Extra: map[string][]string{key: {value}}}
		if setIdentity(t.Context(), header, who, nil) != nil {
			return
		}
		got := &user.DefaultInfo{Extra: map[string][]string{}}
		for header, values := range header {
			if !httpguts.ValidHeaderFieldName(header) || header != http.CanonicalHeaderKey(header) {
				t.Errorf("header name %q is not valid", header)
			}
			for _, v := range values {
				if !httpguts.ValidHeaderFieldValue(v) || strings.Trim(v, " \t") != v {
					t.Errorf("header value %q does not arrive as it is", v)
				}
			}
			switch header {
			case "Impersonate-User":
				got.Name = values[0]
			case "Impersonate-Uid":
				got.UID = values[0]
			case "Impersonate-Group":
				got.Groups = values
			default:
				got.Extra[decodeExtraKey(t, header)] = values
			}
		}
		same.Values(t, "identity", who, got)
	})
}
