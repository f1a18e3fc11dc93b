package proxy

import (
	"encoding/base64"
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/internal/logininfo"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

var (
	complaints = regexp.MustCompile(`(?s)<pre id="wrong">(.*?)</pre>`)
	downloads  = regexp.MustCompile(`<a download="prod-eu.yaml" href="data:application/yaml;base64,([^"]*)">`)
)

// TestPageInBrowser shows the login page as the proxy serves it, in headless Chromium, on a phone and a desktop, in
// both themes. Only the header that forbids frames is removed, to show it at both widths.
func TestPageInBrowser(t *testing.T) {
	t.Parallel()
	ca := must.Get(certs.NewCA("Company CA", time.Now(), time.Hour))(t)
	jwt := configv1alpha1.KubeconfigAuthenticator{Kind: configv1alpha1.AuthenticatorKindJWT, Name: "people"}
	hook := configv1alpha1.KubeconfigAuthenticator{Kind: configv1alpha1.AuthenticatorKindWebhook, Name: "hook"}
	offer := must.Get(logininfo.NewOffer(logininfo.Info{
		ClusterName: "prod-eu", Endpoint: "https://kubernetes.production.europe.example.com:8443", CABundle: ca.CertPEM(),
		APIGroupSuffix: "pinniped.dev",
		Logins: []logininfo.Login{
			{Name: "people", Authenticator: jwt, OIDC: &logininfo.OIDC{
				KubeconfigOIDC: configv1alpha1.KubeconfigOIDC{ClientID: "my-client", Scopes: []string{"openid", "offline_access"}},
				Issuer:         "https://login.example.com", Audience: "my-client",
			}},
			{Name: "robots", Authenticator: hook},
		},
	}, &configv1alpha1.InstallHint{
		Text: "Install pinniped from our software center.", URL: "https://wiki.example.com/pinniped",
	}, []string{certs.Fingerprint(ca.Certificate().Raw)}))(t)
	p := newProxy(t)
	p.start(t, func(_ *proxy, o *Options) { o.LoginInfo = func() *logininfo.Offer { return offer } })
	page := p.get(t, p.client(t, nil), "/", http.Header{"Accept": {browserAccepts}})

	// without JavaScript
	for _, want := range []string{"<pre>pinniped get kubeconfig --from https://", "<pre>kubectl get namespaces</pre>"} {
		if !strings.Contains(page.Body, want) {
			t.Errorf("the page lacks %q:\n%s", want, page.Body)
		}
	}
	download := downloads.FindStringSubmatch(page.Body)
	if download == nil {
		t.Fatalf("the page offers no download:\n%s", page.Body)
	}
	content := must.Get(base64.StdEncoding.DecodeString(html.UnescapeString(download[1])))(t)
	if config, err := clientcmd.Load(content); err != nil ||
		config.Contexts[config.CurrentContext] == nil || len(config.AuthInfos) != 1 {
		t.Errorf("the download is no kubeconfig: %v\n%s", err, content)
	}

	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", page.Header.Get("Content-Type"))
		w.Header().Set("Content-Security-Policy",
			strings.Replace(page.Header.Get("Content-Security-Policy"), "; frame-ancestors 'none'", "", 1))
		_, _ = w.Write([]byte(page.Body))
	})
	mux.HandleFunc("/look", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, filepath.Join("testdata", "page.html"))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	for scheme, ground := range map[string]string{"dark": "rgb(20, 23, 28)", "light": "rgb(255, 255, 255)"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			preferred := map[string]string{"dark": "0", "light": "1"}[scheme]
			shot := filepath.Join(t.TempDir(), "shot.png")
			if kept := os.Getenv("KEEP_SCREENSHOTS"); kept != "" {
				shot = filepath.Join(kept, "page-"+scheme+".png")
			}
			document, log := testkit.Chromium(t, server.URL+"/look", "--dump-dom", "--screenshot="+shot,
				"--window-size=1300,2000", "--virtual-time-budget=60000", "--blink-settings=preferredColorScheme="+preferred)
			wrong := complaints.FindStringSubmatch(document)
			if wrong == nil {
				t.Fatalf("the browser did not come to the end:\n%s\n%s", document, log)
			}
			if wrong[1] != "" {
				t.Errorf("in a browser:\n%s", html.UnescapeString(wrong[1]))
			}
			if !strings.Contains(document, `data-ground="`+ground+`"`) {
				t.Errorf("the page has another background than %s:\n%s", ground, document)
			}
			if strings.Contains(log, "Content Security Policy") || strings.Contains(log, "Refused to") {
				t.Errorf("the browser complains:\n%s", log)
			}
		})
	}
}
