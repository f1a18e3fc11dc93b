package integration

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestADeletedCredentialIssuer deletes the CredentialIssuer while all replicas are stopped and the Secret is invalid.
// The replicas start and serve the last known good certificate. Only the administrator recreates the CredentialIssuer.
func TestADeletedCredentialIssuer(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	good := w.issue(t, "localhost")
	w.putSecret(t, "deleted-cert", withCA(good, w.pki.CertPEM()))
	w.asAdmin(t, "ip-tls", "set", "--secret=deleted-cert", "--ca-from-secret", "--allow=OldClientsBreak",
		"--timeout=60s").ok(t)
	w.waitForServed(t, 20*time.Second, good, 2, 2)
	kubeconfig := w.userKubeconfig(t, "pinny:password123")
	before := w.issuer(t)
	stop(t, w.agents...)
	w.putSecret(t, "deleted-cert", map[string][]byte{"tls.crt": []byte("x"), "tls.key": []byte("y")})
	must.Do(t, w.admin.Delete(t.Context(), before.DeepCopy()))
	start(t, w.agents...)
	w.allServe(t, 30*time.Second, good)
	// Logins use the aggregated APIs. The API server marked them unavailable while no replica ran, and checks again at its
	// own interval.
	waiting, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	must.Do(t, w.WaitAvailable(waiting))
	w.succeed(t, w.cli, "whoami", "--kubeconfig="+kubeconfig)

	var after configv1alpha1.CredentialIssuer
	name := types.NamespacedName{Name: devinstall.CredentialIssuer}
	if err := w.admin.Get(t.Context(), name, &after); !apierrors.IsNotFound(err) {
		t.Errorf("it was created again: %v", err)
	}
	w.putSecret(t, "deleted-cert", withCA(good, w.pki.CertPEM()))
	after = configv1alpha1.CredentialIssuer{ObjectMeta: metav1.ObjectMeta{Name: name.Name}, Spec: before.Spec}
	must.Do(t, w.admin.Create(t.Context(), &after))
	w.waitForStatus(t, "Listening", "")
	w.waitForServed(t, 20*time.Second, good, 2, 2)
	w.succeed(t, w.cli, "whoami", "--kubeconfig="+kubeconfig)
	w.generatedOnly(t)
}
