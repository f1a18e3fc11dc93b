package integration

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

// TestABundleInAConfigMap has the agent take a webhook's CA bundle from a ConfigMap.
func TestABundleInAConfigMap(t *testing.T) {
	w := needsCluster(t)
	bundle := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: devinstall.Namespace, Name: "webhook-ca"},
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
	w.removeAfterwards(t, bundle, webhook)
	for _, object := range []client.Object{bundle, webhook} {
		if err := w.admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, 20*time.Second, func() error {
		if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(webhook), webhook); err != nil {
			return err
		}
		if webhook.Status.Phase != authenticationv1alpha1.PhaseReady {
			return fmt.Errorf("phase %q: %v", webhook.Status.Phase, webhook.Status.Conditions)
		}
		return nil
	})
}

// TestTheWebhookMendsItsCertificate shows that the local-user-authenticator puts its serving certificate right in the
// Secret that is there, so that the CA in WebhookAuthenticators stays good.
func TestTheWebhookMendsItsCertificate(t *testing.T) {
	w := needsCluster(t)
	before := w.webhookSecret(t)
	broken := before.DeepCopy()
	delete(broken.Data, "tlsCertificateChain")
	if err := w.admin.Update(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
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

// webhookSecret is the Secret with the local-user-authenticator's serving certificate and CA.
func (w *world) webhookSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	var secret corev1.Secret
	if err := w.admin.Get(t.Context(), types.NamespacedName{
		Namespace: devinstall.LocalUserNamespace, Name: "local-user-authenticator-tls-serving-certificate",
	}, &secret); err != nil {
		t.Fatal(err)
	}
	return &secret
}
