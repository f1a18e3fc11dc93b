package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/documents"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// administrator returns a reader whose folder has a certificate of the company's CA and a user's kubeconfig.
func (w *world) administrator(t *testing.T) *reader {
	t.Helper()
	r := w.reader(t)
	pair := w.issue(t, "localhost")
	r.file(t, "company-ca.pem", w.pki.CertPEM())
	r.file(t, "ca.pem", w.pki.CertPEM())
	r.file(t, "fullchain.pem", pair.CertPEM)
	r.file(t, "key.pem", pair.KeyPEM)
	return r
}

// distribute puts a user's kubeconfig into the reader's folder.
func (r *reader) distribute(t *testing.T, name string) {
	t.Helper()
	content := must.Get(os.ReadFile(r.userKubeconfig(t, "pinny:password123")))(t)
	r.file(t, name, content)
}

func (w *world) namespace(t *testing.T, name string) {
	t.Helper()
	err := w.admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
}

// issueAsCertManager fills the Secret of a Certificate in the agent's namespace, as cert-manager does.
func (w *world) issueAsCertManager(t *testing.T, name string) {
	t.Helper()
	certificate := &unstructured.Unstructured{}
	certificate.SetGroupVersionKind(schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"})
	must.Do(t, w.admin.Get(t.Context(), ours(name), certificate))
	names, _, _ := unstructured.NestedStringSlice(certificate.Object, "spec", "dnsNames")
	secret, _, _ := unstructured.NestedString(certificate.Object, "spec", "secretName")
	w.putSecret(t, secret, withCA(w.issue(t, names...), w.pki.CertPEM()))
}

func TestHowToExternalCertificate(t *testing.T) {
	w := needsCluster(t)
	w.define(t, certManagerModule, "deploy/crds", "certificates.cert-manager.io")
	w.define(t, contourModule, "examples/contour/01-crds.yaml", "httpproxies.projectcontour.io")
	w.generatedOnly(t)
	w.use(t)
	r := w.administrator(t)
	r.notFresh()
	webhook := &authenticationv1alpha1.WebhookAuthenticator{}
	must.Do(t, w.admin.Get(t.Context(), types.NamespacedName{Name: "local-user-authenticator"}, webhook))
	webhook.ObjectMeta = metav1.ObjectMeta{Name: "my-webhook"}
	must.Do(t, w.admin.Create(t.Context(), webhook))
	binding := ourMeta("pinniped-ip-tls-operator")
	w.removeAfterwards(t, webhook, &rbacv1.RoleBinding{ObjectMeta: binding},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: binding.Name}})
	serves := func(secret string) {
		t.Helper()
		if tls := w.issuer(t).Spec.ImpersonationProxy.TLS; tls == nil || tls.SecretName != secret {
			t.Errorf("the CredentialIssuer has %+v, want Secret %q", tls, secret)
		}
	}
	r.reads(t, "docs/howto/external-certificate.md", map[string]func(){
		"ip-tls set --secret": func() { w.issueAsCertManager(t, "proxy-tls") },
		"ip-tls check": func() {
			serves("proxy-tls")
			w.putSecret(t, "proxy-tls-new", pairData(w.issue(t, "localhost")))
		},
		"kubeconfig rotate": func() { r.distribute(t, "kubeconfigs/pinny.yaml") },
		"ip-tls undo": func() { // a change that can be undone without breaking clients
			w.succeed(t, w.cli, "ip-tls", "set", "--secret=proxy-tls-new", "--kubeconfig="+w.Cluster.AdminKubeconfig())
		},
		"ip-tls history": func() { serves("proxy-tls") },
	})
	if tls := w.issuer(t).Spec.ImpersonationProxy.TLS; tls != nil {
		t.Errorf("after unset, the CredentialIssuer has %+v", tls)
	}
}

func TestHowToRotateCA(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "proxy-tls", pairData(w.issue(t, "localhost")))
	next := must.Get(certs.NewCA("Next Corporate CA", time.Now().Add(time.Second), 100*24*time.Hour))(t)
	r := w.administrator(t)
	pair := issueAt(t, next, time.Now(), 90*24*time.Hour, "localhost")
	r.file(t, "fullchain.pem", pair.CertPEM)
	r.file(t, "key.pem", pair.KeyPEM)
	r.file(t, "ca-2027.pem", next.CertPEM())
	r.distribute(t, "kubeconfigs/pinny.yaml")
	w.use(t)
	w.removeAfterwards(t, &corev1.Secret{
		ObjectMeta: ourMeta("proxy-tls-2027"),
	})
	printed := r.reads(t, "docs/howto/rotate-ca.md", map[string]func(){
		"ip-tls undo": func() {
			if err := presents(w.agents[0].ProxyAddress(), pair); err != nil {
				t.Errorf("in the end: %v", err)
			}
			path := filepath.Join(r.dir, "kubeconfigs", "pinny.yaml")
			if who := w.succeed(t, w.cli, "whoami", "--kubeconfig="+path); !strings.Contains(who, "pinny") {
				t.Errorf("whoami with the rotated kubeconfig:\n%s", who)
			}
		},
	})
	if last := printed[len(printed)-1]; !strings.Contains(last, "undone") && !strings.Contains(last, "prepared") {
		t.Errorf("undo says\n%s", last)
	}
}

func TestHowToCertificateTrouble(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "proxy-tls", pairData(w.issue(t, "localhost")))
	w.onlyNow(t)
	r := w.administrator(t)
	r.distribute(t, ".kube/config")
	r.environment = append(r.environment, "HOME="+r.dir)
	r.reads(t, "docs/howto/certificate-trouble.md", nil)
}

func TestHowToKubeconfigs(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "proxy-tls", pairData(w.issue(t, "localhost")))
	r := w.administrator(t)
	r.distribute(t, "kubeconfigs/pinny.yaml")
	r.reads(t, "docs/howto/kubeconfigs.md", nil)
}

func TestHowToSharedWildcard(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	r := w.administrator(t)
	r.notFresh()
	w.namespace(t, "shared")
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shared", Name: "wildcard-tls"}, Type: corev1.SecretTypeTLS,
		Data: withCA(w.issue(t, "localhost"), w.pki.CertPEM()),
	}
	w.create(t, secret)
	t.Cleanup(func() { w.endSharing(t) })
	printed := r.reads(t, "docs/howto/shared-wildcard-certificate.md", nil)
	if explained := printed[len(printed)-2]; strings.Count(explained, " yes ") != 3 {
		t.Errorf("explain says\n%s", explained)
	}
}

func TestHowToOperations(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "proxy-tls", pairData(w.issue(t, "localhost")))
	w.onlyNow(t)
	w.reader(t).reads(t, "docs/howto/operations.md", nil)
}

func TestHowToCIWithoutSecrets(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	w.namespace(t, "shop")
	r := w.reader(t)
	r.file(
		t,
		"authenticator.yaml",
		[]byte(blockWith(t, "docs/howto/ci-without-secrets.md", "kind: JWTAuthenticator", nil)),
	)
	r.file(t, "token", []byte("a token"))
	w.kubectlDoes(t, "apply", "--server-side", "--validate=strict",
		"--filename="+filepath.Join(r.dir, "authenticator.yaml"))
	w.removeAfterwards(t, &authenticationv1alpha1.JWTAuthenticator{ObjectMeta: metav1.ObjectMeta{Name: "github-actions"}},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ci"}})
	r.reads(t, "docs/howto/ci-without-secrets.md", nil)
	w.generatedOnly(t)
}

// TestHowToLocalUsers creates a user, and logs in as that user.
func TestHowToLocalUsers(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	r := w.reader(t)
	// htpasswd may not be installed, so the test computes the hash from the input that the block gives it.
	const password = "correct horse:battery"
	hash := must.Get(bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost))(t)
	r.program(
		t,
		"htpasswd",
		fmt.Sprintf(`[ "$*" = '-niBC 10 ann' ] && [ "$(cat)" = '%s' ] && echo 'ann:%s'`, password, hash),
	)
	r.stdin = password + "\n"
	r.environment = append(r.environment, "TOKEN=ann:"+password)
	authenticator := &authenticationv1alpha1.WebhookAuthenticator{ObjectMeta: metav1.ObjectMeta{Name: "local-users"}}
	w.removeAfterwards(t, authenticator, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: devinstall.LocalUserNamespace, Name: "ann"},
	})
	printed := r.reads(t, "docs/howto/local-users.md", map[string]func(){
		"get kubeconfig": func() { w.reachWebhook(t, authenticator) },
	})
	if who := printed[len(printed)-1]; !strings.Contains(who, "Username: ann\nGroups: admins, developers,") {
		t.Errorf("whoami says\n%s", who)
	}
}

// reachWebhook sets the address of the webhook, as there is no cluster DNS, and waits until it is ready.
func (w *world) reachWebhook(t *testing.T, authenticator *authenticationv1alpha1.WebhookAuthenticator) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(authenticator), authenticator); err != nil {
			return err
		}
		authenticator.Spec.Endpoint = w.users.Endpoint()
		return w.admin.Update(t.Context(), authenticator)
	})
	w.waitUntilReady(t, 60*time.Second, authenticator)
}

// TestIdentityProviderManifests has the API server validate the manifests in the page about identity providers.
func TestIdentityProviderManifests(t *testing.T) {
	w := needsCluster(t)
	blocks := must.Get(documents.Read(filepath.Join("..", ".."), "docs/howto/identity-providers.md"))(t)
	files := filepath.Join(t.TempDir(), "files")
	for _, block := range blocks {
		if block.Language != "yaml" {
			continue
		}
		must.Do(t, os.WriteFile(files, []byte(block.Text), 0o600))
		w.kubectlAs(t, w.Cluster.AdminKubeconfig(), "apply", "--server-side",
			"--dry-run=server", "-f", files).ok(t)
	}
}
