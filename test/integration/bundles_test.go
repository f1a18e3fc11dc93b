package integration

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestABundleInAConfigMap configures the CA bundle of a webhook in a ConfigMap.
func TestABundleInAConfigMap(t *testing.T) {
	w := needsCluster(t)
	bundle := &corev1.ConfigMap{
		ObjectMeta: ourMeta("webhook-ca"),
		Data:       map[string]string{"ca.crt": string(w.webhookSecret(t).Data["caCertificate"])},
	}
	webhook := &authenticationv1alpha1.WebhookAuthenticator{
		ObjectMeta: metav1.ObjectMeta{Name: "by-config-map"},
		Spec: authenticationv1alpha1.WebhookAuthenticatorSpec{
			Endpoint: w.users.Endpoint(),
			TLS: &authenticationv1alpha1.TLSSpec{
				CertificateAuthorityDataSource: &authenticationv1alpha1.CertificateAuthorityDataSourceSpec{
					Kind: authenticationv1alpha1.CertificateAuthorityDataSourceKindConfigMap, Name: bundle.Name, Key: "ca.crt",
				},
			},
		},
	}
	w.create(t, bundle, webhook)
	w.waitUntilReady(t, 20*time.Second, webhook)
}

// TestTheTrustBundleOfAConfigMap publishes the CA bundle of a ConfigMap, as trust-manager keeps it. It changes and
// deletes the ConfigMap while clients work.
func TestTheTrustBundleOfAConfigMap(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	const secret = "trust-manager-tls"
	next := newCA(t, "Company CA of next year", time.Now())
	source := &corev1.ConfigMap{
		ObjectMeta: ourMeta("company-ca"),
		Data:       map[string]string{"ca-bundle.crt": string(w.pki.CertPEM())},
	}
	w.removeAfterwards(t, source)
	w.putSecret(t, secret, pairData(w.issue(t, "localhost")))
	set := []string{
		"ip-tls", "set", "--secret=" + secret, "--ca-bundle-from=configmap/company-ca#ca-bundle.crt",
		"--allow=OldClientsBreak", "--timeout=30s",
	}
	w.asAdmin(
		t,
		set...).exits(t, 3, `certificateAuthorityDataSource: ConfigMap "company-ca"`)
	must.Do(t, w.admin.Create(t.Context(), source))
	w.asAdmin(t, set...).ok(t)
	w.onlyNow(t)
	w.waitForBundle(t, w.pki.CertPEM())
	roots := trusting(w.pki.CertPEM())
	load := w.load(t, roots)

	source.Data["ca-bundle.crt"] += string(next.CertPEM())
	must.Do(t, w.admin.Update(t.Context(), source))
	both := certs.UnionBundle(w.pki.CertPEM(), next.CertPEM())
	w.waitForBundle(t, both)
	w.asAdmin(t, "ip-tls", "status").exits(t, 0, `CA bundle from ConfigMap "company-ca"`)

	must.Do(t, w.admin.Delete(t.Context(), source))
	w.waitForStatus(t, configv1alpha1.ReasonPending, `certificateAuthorityDataSource: ConfigMap "company-ca"`)
	w.waitForBundle(t, both)
	if got := w.asAdmin(t, "ip-tls", "status"); !strings.Contains(got.errOut, "BundleNotFound") ||
		!strings.Contains(got.out, `ConfigMap "company-ca"`) {
		t.Errorf("ip-tls status ended with %d and does not name the ConfigMap: %s%s", got.code, got.out, got.errOut)
	}
	load.enough(t, 100)
	source.ResourceVersion = ""
	must.Do(t, w.admin.Create(t.Context(), source))
	w.waitForStatus(t, configv1alpha1.ReasonListening, "")
	load.enough(t, 200)
	load.stop(t)

	issuer := w.issuer(t)
	issuer.Spec.ImpersonationProxy.TLS.CertificateAuthorityData = base64.StdEncoding.EncodeToString(both)
	if err := w.admin.Update(t.Context(), issuer); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "cannot both be set") {
		t.Errorf("two sources of the CA bundle: %v", err)
	}
}

// TestTrustManager follows docs/howto/trust-bundle.md with trust-manager's own controller: its CA bundle is published,
// also after its source changes.
func TestTrustManager(t *testing.T) {
	w := needsCluster(t)
	w.needsController(t, "trustmanager")
	w.generatedOnly(t)
	for _, file := range []string{"trust.cert-manager.io_bundles.yaml", "trust-manager.io_clusterbundles.yaml"} {
		w.installCRD(t, "github.com/cert-manager/trust-manager", file)
	}
	key := must.Get(w.pki.KeyPEM())(t)
	source := map[string][]byte{"tls.crt": w.pki.CertPEM(), "tls.key": key}
	w.putSecret(t, "company-ca", source)
	w.putSecret(t, "proxy-tls", pairData(w.issue(t, "localhost")))
	w.startController(t, "trustmanager", "--trust-namespace="+devinstall.Namespace)
	written := &corev1.ConfigMap{ObjectMeta: ourMeta("company-ca")}
	w.removeAfterwards(t, written)
	r := w.reader(t)
	r.notFresh()
	r.reads(t, "docs/howto/trust-bundle.md", map[string]func(){"ip-tls set": func() {
		testkit.Eventually(t, 20*time.Second, func() error {
			return w.admin.Get(t.Context(), client.ObjectKeyFromObject(written), written)
		})
	}})
	both := certs.UnionBundle(w.pki.CertPEM(), newCA(t, "Company CA of next year", time.Now()).CertPEM())
	source["tls.crt"] = both
	w.putSecret(t, "company-ca", source)
	w.waitForBundle(t, both)
}

// TestTheWebhookRepairsItsCertificate shows that the local-user-authenticator repairs its serving certificate in the
// existing Secret, so that the CA in WebhookAuthenticators stays valid.
func TestTheWebhookRepairsItsCertificate(t *testing.T) {
	w := needsCluster(t)
	before := w.webhookSecret(t)
	broken := before.DeepCopy()
	delete(broken.Data, "tlsCertificateChain")
	must.Do(t, w.admin.Update(t.Context(), broken))
	testkit.Eventually(t, 20*time.Second, func() error {
		mended := w.webhookSecret(t)
		if len(mended.Data["tlsCertificateChain"]) == 0 {
			return fmt.Errorf("there is no certificate")
		}
		if mended.UID != before.UID || !bytes.Equal(mended.Data["caCertificate"], before.Data["caCertificate"]) {
			t.Fatal("the Secret is another one, or has another CA")
		}
		return nil
	})
}

// webhookSecret returns the Secret with the local-user-authenticator's serving certificate and CA.
func (w *world) webhookSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	var secret corev1.Secret
	must.Do(t, w.admin.Get(t.Context(), types.NamespacedName{
		Namespace: devinstall.LocalUserNamespace, Name: "local-user-authenticator-tls-serving-certificate",
	}, &secret))
	return &secret
}
