package proxy

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/logininfo"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const browserAccepts = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

// TestLoginInfo checks that all clients can read the login information, browsers as a page, and that there is none
// while it is not configured.
func TestLoginInfo(t *testing.T) {
	t.Parallel()
	offer := must.Get(logininfo.NewOffer(logininfo.Info{
		ClusterName: "prod-eu", Endpoint: "https://proxy.example.com", APIGroupSuffix: "pinniped.dev",
		Logins: []logininfo.Login{{Name: "robots", Authenticator: configv1alpha1.KubeconfigAuthenticator{
			Kind: configv1alpha1.AuthenticatorKindWebhook, Name: "hook",
		}}},
	}, nil, nil))(t)
	var offered atomic.Pointer[logininfo.Offer]
	p := newProxy(t)
	p.start(t, func(_ *proxy, o *Options) { o.LoginInfo = offered.Load })
	nobody := p.client(t, nil)
	browser := http.Header{"Accept": {browserAccepts}}

	before := p.get(t, nobody, "/", browser)
	if strings.Contains(before.Header.Get("Content-Type"), "html") {
		t.Errorf("a page is shown while none is configured: %+v", before)
	}
	if got := p.get(t, nobody, logininfo.Path, nil); got.Code != http.StatusNotFound {
		t.Errorf("while nothing is configured: %+v", got)
	}

	offered.Store(offer)
	for _, header := range []http.Header{{}, {"Authorization": {"Bearer bad"}}, {"Impersonate-User": {"x"}}} {
		got := p.get(t, nobody, logininfo.Path, header)
		if got.Code != http.StatusOK || got.Header.Get("Content-Type") != "application/json" {
			t.Errorf("with %v: %+v", header, got)
		}
		if info, err := logininfo.Decode(strings.NewReader(got.Body)); err != nil || info.ClusterName != "prod-eu" {
			t.Errorf("with %v: %+v, %v", header, info, err)
		}
		if cached := got.Header.Get("Cache-Control"); cached != "public, max-age=60" || got.Header.Get("Pragma") != "" {
			t.Errorf("it cannot be cached: %v", got.Header)
		}
		again := p.get(t, nobody, logininfo.Path, http.Header{"If-None-Match": {got.Header.Get("Etag")}})
		if again.Code != http.StatusNotModified || again.Body != "" {
			t.Errorf("the second time: %+v", again)
		}
	}

	page := p.get(t, nobody, "/?q=<script>hello", browser)
	if page.Code != http.StatusOK || !strings.HasPrefix(page.Header.Get("Content-Type"), "text/html") ||
		!strings.Contains(page.Body, "<h1>prod-eu</h1>") || strings.Contains(page.Body, "hello") {
		t.Errorf("%+v", page)
	}
	if policy := page.Header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; ") ||
		strings.Contains(
			policy, "unsafe",
		) || page.Header.Get("X-Frame-Options") != "DENY" || page.Header.Get("Vary") != "Accept" {
		t.Errorf("the page's headers: %v", page.Header)
	}
	for _, accepts := range []string{"", "*/*", "application/json, */*", "text/plain"} {
		if got := p.get(t, nobody, "/", http.Header{"Accept": {accepts}}); got.Code != before.Code ||
			strings.Contains(got.Header.Get("Content-Type"), "html") {
			t.Errorf("a client that accepts %q gets %+v, and not %d", accepts, got, before.Code)
		}
	}
	if got := p.do(t, nobody, http.MethodPost, "/", browser, "{}"); got.Code == http.StatusOK &&
		strings.Contains(got.Body, "<h1>") {
		t.Errorf("the response to a write is %+v", got)
	}
}
