package integration

import (
	"encoding/base64"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/issuer"
)

// TestReadme runs the commands of the README and compares their output with it, without what differs in every run:
// fingerprints, times, and the address of the tests' proxy.
func TestReadme(t *testing.T) {
	w := needsCluster(t)
	w.define(t, certManagerModule, "deploy/crds", "certificates.cert-manager.io")
	w.generatedOnly(t)
	w.removeAfterwards(t, &authenticationv1alpha1.JWTAuthenticator{ObjectMeta: metav1.ObjectMeta{Name: "people"}})
	idp := issuer.New(t)
	r := w.reader(t)
	r.file(t, "company-ca.pem", w.pki.CertPEM())
	r.places = append(r.places, "issuer: https://login.example.com", "issuer: "+idp.URL+
		"\n  tls: {certificateAuthorityData: "+base64.StdEncoding.EncodeToString(idp.CA)+"}")
	r.notFresh()
	printed := r.reads(t, "README.md", map[string]func(){
		"ip-tls set": func() { w.issueAsCertManager(t, "proxy-tls") },
		"get kubeconfig --from": func() { // the agent publishes it within seconds
			testkit.Eventually(t, 20*time.Second, func() error {
				return w.run(t, w.cli, "get", "kubeconfig", "--from=https://"+w.endpoint(), "--ca-bundle="+filepath.Join(r.dir, "company-ca.pem")).
					err()
			})
		},
	})
	for i, block := range r.blocks(t, "README.md") {
		if block.Language != "console" {
			continue
		}
		shown := ""
		for line := range strings.Lines(block.Text) {
			if !strings.HasPrefix(line, "$ ") {
				shown += line
			}
		}
		printed[i] = strings.ReplaceAll(printed[i], w.endpoint(), "proxy.example.com")
		if diff := cmp.Diff(lasting(shown), lasting(printed[i])); diff != "" {
			t.Errorf("%s: what the README shows, and what is printed (-README +printed):\n%s\n%s", block, diff, printed[i])
		}
	}
}

var passing = []struct {
	is *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "TIME"},
	{regexp.MustCompile(`\b[0-9a-f]{16,64}\b`), "FINGERPRINT"},
	{regexp.MustCompile(` +`), " "}, // column widths depend on their content
}

// lasting removes from a transcript what differs in every run.
func lasting(text string) string {
	for _, one := range passing {
		text = one.is.ReplaceAllString(text, one.as)
	}
	return text
}
