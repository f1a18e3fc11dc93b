package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestHowToWalkthrough runs the walkthrough without the containers. As on kind, the proxy is disabled at first.
func TestHowToWalkthrough(t *testing.T) {
	w := needsCluster(t)
	w.define(t, certManagerModule, "deploy/crds", "certificates.cert-manager.io", "clusterissuers.cert-manager.io")
	w.define(t, contourModule, "examples/contour/01-crds.yaml", "httpproxies.projectcontour.io")
	w.namespace(t, "cert-manager")
	w.generatedOnly(t)
	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
		s.Mode, s.ExternalEndpoint = configv1alpha1.ImpersonationProxyModeDisabled, ""
		s.Service.Type = configv1alpha1.ServiceTypeLoadBalancer
	})
	w.waitForStatus(t, "Disabled", "")
	w.onlyNow(t)

	hash := must.Get(bcrypt.GenerateFromPassword([]byte("password123"), bcrypt.MinCost))(t)
	pinny := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: devinstall.LocalUserNamespace, Name: "pinny"}}
	must.Do(t, w.admin.Delete(t.Context(), pinny))
	t.Cleanup(func() { // the other tests need this user
		err := w.createUser(context.WithoutCancel(t.Context()), "pinny", string(hash), "group-for-mtls")
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Error(err)
		}
	})
	authenticator := &authenticationv1alpha1.WebhookAuthenticator{ObjectMeta: metav1.ObjectMeta{Name: "local-users"}}
	w.removeAfterwards(t, authenticator,
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "mtls-admins"}})

	r := w.reader(t)
	r.places = append(r.places, "impersonation-proxy-mtls.local", w.endpoint())
	r.program(t, "htpasswd", fmt.Sprintf(`[ "$*" = '-nbBC 10 x password123' ] && echo 'x:%s'`, hash))
	printed := r.reads(t, "docs/howto/walkthrough.md", map[string]func(){
		"ip-tls set":     func() { w.issueAsCertManager(t, "proxy-tls") },
		"get kubeconfig": func() { w.reachWebhook(t, authenticator) },
	})
	last := printed[len(printed)-1]
	for _, want := range []string{
		`User "pinny" cannot list resource "pods" in API group "" at the cluster scope: ` +
			"decision made by impersonation-proxy.concierge.pinniped.dev",
		"Username: pinny\nGroups: group-for-mtls, system:authenticated",
		"✓",
	} {
		if !strings.Contains(last, want) {
			t.Errorf("the last block does not print %q:\n%s", want, last)
		}
	}
	w.generatedOnly(t)
}

// TestWalkthroughScript shows that the script runs the blocks of the document, and exits if something is missing.
func TestWalkthroughScript(t *testing.T) {
	w := needsCluster(t)
	script := filepath.Join("..", "..", "hack", "walkthrough.sh")
	printed := w.succeed(t, "bash", script, "--print")
	for _, block := range (&reader{world: w}).all(t, "docs/howto/walkthrough.md") {
		text := strings.ReplaceAll(block.Text, "                  # exit code 1\n", " || [ $? = 1 ]\n")
		if got := strings.Contains(printed, text); got != !strings.Contains(text, "kind delete") {
			t.Errorf("%s: is it run? %t", block, got)
		}
	}
	if _, err := os.Stat("/usr/bin/kind"); err == nil {
		t.Skip("kind is in /usr/bin: the script would make a cluster")
	}
	w.runWith(t, []string{"PATH=" + t.TempDir() + ":/usr/bin:/bin"}, nil, "bash", script).
		exits(t, 1, "error: there is no kind on the PATH")
}

func TestHowToClouds(t *testing.T) {
	w := needsCluster(t)
	w.define(t, certManagerModule, "deploy/crds", "certificates.cert-manager.io")
	w.generatedOnly(t)
	r := w.administrator(t)
	r.notFresh()
	r.places = append([]string{"DNS:proxy.example.com", "DNS:localhost"}, r.places...)
	w.removeAfterwards(t, &corev1.Secret{
		ObjectMeta: ourMeta("proxy-corporate"),
	})
	w.removeAfterwards(t, &rbacv1.RoleBinding{
		ObjectMeta: ourMeta("pinniped-concierge-nonroot"),
	})
	r.reads(t, "docs/howto/clouds.md", map[string]func(){
		"ip-tls set": func() { w.issueAsCertManager(t, "proxy-tls") },
		"ip-tls check": func() { // the corporate PKI signs the request
			key := must.Get(w.pki.KeyPEM())(t)
			r.file(t, "ca.key", key)
			r.file(t, "extensions", []byte("subjectAltName=DNS:localhost\nextendedKeyUsage=serverAuth\n"))
			w.runWith(t, nil, nil, "openssl", "x509", "-req", "-days=60",
				"-in="+filepath.Join(r.dir, "request.csr"), "-out="+filepath.Join(r.dir, "fullchain.pem"),
				"-CA="+filepath.Join(r.dir, "ca.pem"), "-CAkey="+filepath.Join(r.dir, "ca.key"),
				"-extfile="+filepath.Join(r.dir, "extensions")).ok(t)
		},
	})
	if tls := w.issuer(t).Spec.ImpersonationProxy.TLS; tls == nil || tls.SecretName != "proxy-corporate" {
		t.Errorf("the CredentialIssuer has %+v", tls)
	}
	w.generatedOnly(t)
}
