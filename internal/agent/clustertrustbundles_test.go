package agent

import (
	"fmt"
	"testing"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestClusterTrustBundle has a service account without any role watch a ClusterTrustBundle, and read one where the API
// server serves none.
func TestClusterTrustBundle(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t, devcluster.Options{ExtraAPIServerArgs: []string{
		"--feature-gates=ClusterTrustBundle=true",
		"--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true",
	}})
	admin := must.Get(kubernetes.NewForConfig(cluster.AdminConfig()))(t)
	without := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "without-a-role"}}
	must.Get(admin.CoreV1().
		ServiceAccounts("default").
		Create(t.Context(), without, metav1.CreateOptions{}))(t)
	account := must.Get(cluster.ServiceAccountConfig(t.Context(), "default", without.Name))(t)
	changed := make(chan types.NamespacedName, 100)
	bundles := must.Get((&agent{rest: account}).newClusterTrustBundles(
		t.Context(), func(name types.NamespacedName) { changed <- name }))(t)
	has := func(want string) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() error {
			pem, err := bundles.TrustBundle(t.Context(), "company-ca")
			switch {
			case err != nil:
				return err
			case pem == nil && want != "", pem != nil && *pem != want:
				return fmt.Errorf("the trust bundle is %v, want %q", pem, want)
			}
			return nil
		})
	}
	has("")
	object := &certificatesv1beta1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "company-ca"}}
	for range 2 {
		ca, err := certs.NewCA("Company CA", time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		object.Spec.TrustBundle = string(ca.CertPEM())
		client := admin.CertificatesV1beta1().ClusterTrustBundles()
		if object.ResourceVersion == "" {
			object, err = client.Create(t.Context(), object, metav1.CreateOptions{})
		} else {
			object, err = client.Update(t.Context(), object, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		has(string(ca.CertPEM()))
	}
	bundles.ForgetTrustBundles("")
	if len(changed) == 0 {
		t.Error("no change was reported")
	}
}
