package logininfo_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"html"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/logininfo"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func info(tb testing.TB) logininfo.Info {
	tb.Helper()
	ca, err := certs.NewCA("ca", time.Unix(1700000000, 0), time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	return logininfo.Info{
		ClusterName: "prod-eu", Endpoint: "https://proxy.example.com:8443", CABundle: ca.CertPEM(),
		APIGroupSuffix: "pinniped.dev",
		Logins: []logininfo.Login{
			{
				Name: "people", RefreshTrustBundle: true,
				Authenticator: configv1alpha1.KubeconfigAuthenticator{
					Kind: configv1alpha1.AuthenticatorKindJWT, Name: "people",
				},
				OIDC: &logininfo.OIDC{
					KubeconfigOIDC: configv1alpha1.KubeconfigOIDC{
						ClientID: "my-client", Scopes: []string{"openid", "api://x/.default"}, Flow: "device_code",
					},
					Issuer: "https://login.example.com/realms/x", Audience: "my-client", CABundle: ca.CertPEM(),
				},
			},
			{
				Name: "robots",
				Authenticator: configv1alpha1.KubeconfigAuthenticator{
					Kind: configv1alpha1.AuthenticatorKindWebhook, Name: "hook",
				},
			},
		},
	}
}

func TestThereAndBack(t *testing.T) {
	t.Parallel()
	want := info(t)
	document, err := logininfo.Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := logininfo.Decode(bytes.NewReader(document))
	if err != nil {
		t.Fatal(err)
	}
	want.APIVersion, want.Kind = got.APIVersion, got.Kind
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want.Logins[0].OIDC.CABundle = bytes.Repeat(want.CABundle, 200)
	if _, err := logininfo.Encode(want); err == nil {
		t.Error("a document that is too large can be encoded")
	}
}

// TestHostileDocuments changes each field of a valid document to values that must not get into a kubeconfig.
func TestHostileDocuments(t *testing.T) {
	t.Parallel()
	good, err := logininfo.Encode(info(t))
	if err != nil {
		t.Fatal(err)
	}
	words := []any{
		"", "-x", "--credential-cache=/etc/passwd", "a b", "a\nb", "a\x00b", "a\x1b[2J", "a,b", "ü", strings.Repeat("x", 300),
		7,
		[]any{},
		map[string]any{"a": 1},
	}
	urls := []any{
		"",
		"http://proxy.example.com",
		"https://",
		"https:///x",
		"https://u:p@proxy.example.com",
		"https://proxy.example.com?x",
		"https://proxy.example.com#x",
		"https://proxy.example.com/\x1b",
		"https://proxy.example.com/ x",
		"file:///etc/passwd",
		"https://proxy.example.com/'$(id)'",
		"https://proxy.example.com/" + strings.Repeat("x", 600),
		7,
		nil,
	}
	bundles := []any{"eA==", "%", base64.StdEncoding.EncodeToString([]byte(
		"-----BEGIN PRIVATE KEY-----\neA==\n-----END PRIVATE KEY-----\n")), 7}
	for path, values := range map[string][]any{
		"apiVersion":                             {"login.pinniped.dev/v2", "", nil},
		"kind":                                   {"Status", "", nil},
		"clusterName":                            append(words, "Prod", "../x", nil),
		"endpoint":                               append(urls, "https://proxy.example.com/x", "https://proxy.example.com;id"),
		"certificateAuthorityData":               bundles,
		"apiGroupSuffix":                         append(words, "Pinniped.dev", nil),
		"logins":                                 {nil, []any{}, make([]any, 9), "people"},
		"logins.0":                               {nil, map[string]any{}},
		"logins.1.name":                          append(words, "people", "a.b", nil), // duplicate
		"logins.0.authenticator.kind":            append(words, "WebhookAuthenticator", "Secret", nil),
		"logins.1.authenticator.kind":            {"JWTAuthenticator"},
		"logins.0.authenticator.name":            append(words, nil),
		"logins.0.oidc":                          {nil},
		"logins.0.oidc.issuer":                   urls,
		"logins.0.oidc.clientID":                 append(words, nil),
		"logins.0.oidc.audience":                 append(words, nil),
		"logins.0.oidc.flow":                     append(words[1:], "exec"),
		"logins.0.oidc.listenPort":               {-1, 65536, 1.5, "18000"},
		"logins.0.oidc.scopes":                   {nil, []any{}, make([]any, 40), "openid"},
		"logins.0.oidc.scopes.1":                 append(words, nil),
		"logins.0.oidc.certificateAuthorityData": bundles,
		"logins.0.refreshTrustBundle":            {"/etc/passwd", 1},
	} {
		for _, value := range values {
			var document any
			if err := json.Unmarshal(good, &document); err != nil {
				t.Fatal(err)
			}
			set(document, strings.Split(path, "."), value)
			changed, err := json.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := logininfo.Decode(bytes.NewReader(changed)); err == nil {
				t.Errorf("%s can be %q: %+v", path, value, got)
			} else if strings.ContainsAny(err.Error(), "\x1b\x00\n") || len(err.Error()) > 600 {
				t.Errorf("%s: the error shows raw text of the document: %q", path, err)
			}
		}
	}
}

func set(at any, path []string, value any) {
	for ; len(path) > 1; path = path[1:] {
		at = child(at, path[0])
	}
	switch at := at.(type) {
	case map[string]any:
		at[path[0]] = value
	case []any:
		at[path[0][0]-'0'] = value
	}
}

func child(at any, name string) any {
	if list, ok := at.([]any); ok {
		return list[name[0]-'0']
	}
	return at.(map[string]any)[name]
}

func TestOtherResponses(t *testing.T) {
	t.Parallel()
	good, err := logininfo.Encode(info(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, response := range map[string]string{
		"a page":          "<html>log in</html>",
		"nothing":         "",
		"a status":        `{"kind":"Status","apiVersion":"v1","code":404}`,
		"a long response": `{"kind":"` + strings.Repeat("x", logininfo.MaxSize) + `"}`,
		"nesting":         strings.Repeat("[", 60000),
	} {
		if _, err := logininfo.Decode(strings.NewReader(response)); !errors.Is(err, logininfo.ErrNoDocument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := logininfo.Decode(strings.NewReader(string(good) + "{}")); err == nil {
		t.Error("two documents are one")
	}
	more := strings.Replace(string(good), `{`, `{"command":"/bin/sh","env":[{"name":"LD_PRELOAD"}],"args":["x"],`, 1)
	got, err := logininfo.Decode(strings.NewReader(more))
	if err != nil {
		t.Fatal(err)
	}
	if config, err := got.Kubeconfig(&got.Logins[0]); err != nil || strings.Contains(string(config), "/bin/sh") ||
		strings.Contains(string(config), "LD_PRELOAD") {
		t.Errorf("unknown fields get into the kubeconfig: %s, %v", config, err)
	}
}

// FuzzDecode decodes arbitrary bytes. A document that is accepted can be encoded, and contains nothing that a terminal
// or a shell would interpret.
func FuzzDecode(f *testing.F) {
	good, err := logininfo.Encode(info(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, response []byte) {
		got, err := logininfo.Decode(bytes.NewReader(response))
		if err != nil {
			return
		}
		if _, err := logininfo.NewOffer(*got, nil, nil); err != nil && len(response) < logininfo.MaxSize/2 {
			t.Errorf("it is accepted, and cannot be encoded: %v", err)
		}
	})
}

func TestPage(t *testing.T) {
	t.Parallel()
	hint := &configv1alpha1.InstallHint{Text: `<script>alert(1)</script> "x" @fetch@`, URL: `https://x.example.com/"><b>`}
	in := info(t)
	offer, err := logininfo.NewOffer(in, hint, []string{"aa", "bb"})
	if err != nil {
		t.Fatal(err)
	}
	page := string(offer.Page.Body)
	for _, want := range []string{
		"<h1>prod-eu</h1>", "<code>https://proxy.example.com:8443</code>",
		"pinniped get kubeconfig --from https://proxy.example.com:8443 --ca-fingerprint sha256:aa,sha256:bb --login people " +
			"--merge-into ~/.kube/config --set-current",
		"--login robots --static-token-env TOKEN", "&lt;script&gt;alert(1)",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if n := strings.Count(page, "<script"); n != 1 {
		t.Errorf("%d scripts", n)
	}
	if strings.Contains(page, "<b>\"") || strings.Contains(page, "x.example.com/\"") {
		t.Error("the URL is not escaped")
	}
	link := regexp.MustCompile(`download="prod-eu.yaml" href="data:application/yaml;base64,([^"]*)"`).
		FindStringSubmatch(page)
	if link == nil {
		t.Fatal("no download")
	}
	got, err := base64.StdEncoding.DecodeString(html.UnescapeString(link[1]))
	want, _ := in.Kubeconfig(&in.Logins[0])
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the download is %q, %v", got, err)
	}
}
