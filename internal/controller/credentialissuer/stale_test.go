package credentialissuer

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/testkit"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// behind is an informer that has not seen the agent's own writes yet: it finds no object.
type behind struct{}

func (behind) Get(context.Context, types.NamespacedName) (*corev1.Secret, bool, error) {
	return nil, false, nil
}

func (behind) Forget(func(types.NamespacedName) bool) {}

// TestWatchesThatAreBehind shows that the leader looks before it writes: it makes nothing that is there already,
// and reports no problem.
func TestWatchesThatAreBehind(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	first := startReplica(t, cluster, "default", true)
	err := first.live.Create(t.Context(), &configv1alpha1.CredentialIssuer{
		ObjectMeta: metav1.ObjectMeta{Name: testNames.CredentialIssuer},
		Spec: configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &configv1alpha1.ImpersonationProxySpec{
			Mode:             "enabled",
			Service:          configv1alpha1.ImpersonationProxyServiceSpec{Type: "None"},
			ExternalEndpoint: "proxy.example.com",
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	first.waitFor(t, "Listening", messageListening)
	versions := func() map[string]string {
		found := map[string]string{}
		for _, name := range []string{testNames.TLSSecret, testNames.CASecret, testNames.SignerSecret} {
			secret, there := first.secret(t, name)
			if !there {
				t.Fatalf("Secret %s is not there", name)
			}
			found[name] = secret.ResourceVersion
		}
		return found
	}
	before := versions()

	first.leading.Store(false)
	second := startReplicaWith(t, cluster, "default", "second", true, func(r *Reconciler) { r.Secrets = behind{} })
	testkit.Eventually(t, waitLimit, func() error {
		if second.Holder.Current() == nil || second.Holder.Current().SHA256() != first.Holder.Current().SHA256() {
			return errors.New("the second replica serves something else")
		}
		return second.Ready()
	})
	for range 3 {
		second.notify()
		served := second.waitForServed(t, first.Holder.Current().SHA256(), 2, 2)
		if served.Source != configv1alpha1.ServingCertificateGenerated {
			t.Errorf("the status says %+v", served)
		}
		if strategy, err := second.strategy(t.Context()); err != nil || strategy.Reason != configv1alpha1.ReasonListening {
			t.Errorf("the status says %+v, %v", strategy, err)
		}
	}
	for name, version := range versions() {
		if before[name] != version {
			t.Errorf("Secret %s was written again", name)
		}
	}
}
