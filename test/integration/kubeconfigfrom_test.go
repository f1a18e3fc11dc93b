package integration

import (
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/oidctest"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/documents"
	"github.com/pinniped-toolkit/pinniped/test/testkit/issuer"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestKubeconfigFromProxy logs in a developer without access: an administrator configures how users log in, the
// developer fetches the kubeconfig from the proxy, and the first request logs in.
func TestKubeconfigFromProxy(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	idp := must.Get(oidctest.New())(t)
	t.Cleanup(idp.Close)
	home := t.TempDir()
	block := filepath.Join(home, "block.yaml")
	apply := func(text string) result {
		must.Do(t, os.WriteFile(block, []byte(text), 0o600))
		return w.kubectlAs(t, w.Cluster.AdminKubeconfig(), "patch", "credentialissuer", w.issuer(t).Name,
			"--type=merge", "--patch-file="+block)
	}
	const good = `spec: {impersonationProxy: {kubeconfig: {clusterName: prod-eu, logins: [{name: people,
  authenticator: {kind: JWTAuthenticator, name: people},
  oidc: {clientID: ` + oidctest.ClientID + `, scopes: [openid, offline_access, groups]}}]}}}`
	for _, change := range [][2]string{
		{"clusterName: prod-eu", "clusterName: ../prod"},
		{"name: people,", "name: bearer,"},
		{"kind: JWTAuthenticator", "kind: WebhookAuthenticator"},
		{"clientID: ", "clientID: --"},
		{"openid, ", "'a b', "},
		{"scopes: [", "flow: exec, scopes: ["},
		{"scopes: [", "listenPort: 65536, scopes: ["},
		{"logins: ", "installHint: {text: x, url: 'http://example.com'}, logins: "},
	} {
		if got := apply(strings.Replace(good, change[0], change[1], 1)); got.code == 0 {
			t.Errorf("the API server accepts %s", change[1])
		}
	}
	if got := apply(good); got.code != 0 {
		t.Fatal(got.errOut)
	}
	finding := func(wanted bool) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() error {
			var codes []string
			for _, found := range w.issuer(t).Status.Strategies[1].Findings {
				codes = append(codes, found.Code)
			}
			if slices.Contains(codes, configv1alpha1.CodeLoginUnavailable) != wanted {
				return fmt.Errorf("the findings are %q", codes)
			}
			return nil
		})
	}
	finding(true)
	w.trust(t, "people", &issuer.Issuer{URL: idp.URL, CA: idp.CA.CertPEM()}, oidctest.ClientID)

	info := w.issuer(t).Status.Strategies[1].Frontend.ImpersonationProxyInfo
	endpoint := info.Endpoint
	offered := filepath.Join(home, "fetched.yaml")
	link, browser := linkFile(t, home)
	environment := append(os.Environ(), "HOME="+home, "KUBECONFIG="+filepath.Join(home, "none"), "BROWSER="+browser)
	fetch := func(args ...string) result {
		return w.runWith(t, environment, nil, w.cli,
			append([]string{"get", "kubeconfig", "--from", endpoint, "--pinniped-cli-path", w.cli}, args...)...)
	}
	testkit.Eventually(
		t,
		20*time.Second,
		func() error { // the proxy publishes it; the CLI shows its CA without trusting it
			if got := fetch("-o", offered); !strings.Contains(got.errOut, "does not trust its CA") {
				return errors.New(got.errOut)
			}
			return nil
		},
	)
	ca := must.Get(base64.StdEncoding.DecodeString(info.CertificateAuthorityData))(t)
	members, _ := certs.ParseBundle(ca)
	fingerprint := "sha256:" + certs.Fingerprint(members[0].Raw)
	shown, log := testkit.Chromium(t, endpoint, "--dump-dom", "--ignore-certificate-errors", "--virtual-time-budget=10000")
	var steps []string
	for _, found := range regexp.MustCompile(`<pre>(.*?)</pre><button>Copy</button>`).FindAllStringSubmatch(shown, -1) {
		steps = append(steps, html.UnescapeString(found[1]))
	}
	wanted := []string{"pinniped get kubeconfig --from " + endpoint + " --ca-fingerprint " + fingerprint +
		" --merge-into ~/.kube/config --set-current", "kubectl get namespaces"}
	if !slices.Equal(steps, wanted) || strings.Contains(log, "Content Security Policy") {
		t.Fatalf("the page has the steps %q, want %q:\n%s\n%s", steps, wanted, shown, log)
	}
	if got := fetch("-o", offered, "--ca-fingerprint", fingerprint); got.code != 0 {
		t.Fatal(got.errOut)
	}
	administrators := filepath.Join(home, "administrators.yaml")
	w.asAdmin(t, "get", "kubeconfig", "--pinniped-cli-path", w.cli, "-o", administrators).ok(t)
	got, _ := os.ReadFile(offered)
	want, _ := os.ReadFile(administrators)
	if string(got) != string(want) || len(want) == 0 {
		t.Errorf("the developer's kubeconfig\n%s\nis not the administrator's\n%s", got, want)
	}

	opened := opensLink(t, idp, link)
	typed := w.reader(t)
	typed.environment = append(typed.environment, "BROWSER="+browser, "KUBECONFIG=")
	typed.types(t, documents.Block{Text: steps[0] + "\n"})
	who := typed.types(t, documents.Block{Text: "kubectl auth whoami -o 'jsonpath={.status.userInfo.username}'\n"})
	if !strings.HasSuffix(who, idp.User) {
		t.Fatalf("want user %q, got %q", idp.User, who)
	}
	must.Do(t, <-opened)
	finding(false)

	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) { s.Kubeconfig = nil })
	bundle := filepath.Join(home, "ca.pem")
	must.Do(t, os.WriteFile(bundle, ca, 0o600))
	testkit.Eventually(t, 20*time.Second, func() error {
		if got := fetch("--ca-bundle", bundle); !strings.Contains(got.errOut, "the proxy offers no kubeconfig") {
			return errors.New(got.errOut)
		}
		return nil
	})
}
