package credentialissuer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// behind fakes an informer that has not received the agent's own writes yet: it finds no object.
type behind struct{}

func (behind) Get(context.Context, types.NamespacedName) (*corev1.Secret, bool, error) {
	return nil, false, nil
}

func (behind) Forget(func(types.NamespacedName) bool) {}

// TestWatchesThatAreBehind shows that the leader reads before it writes: it creates nothing that exists, and reports no
// problem.
func TestWatchesThatAreBehind(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	first := startReplica(t, cluster, "default", true)
	must.Do(t, first.live.Create(t.Context(), &configv1alpha1.CredentialIssuer{
		ObjectMeta: metav1.ObjectMeta{Name: testNames.CredentialIssuer},
		Spec: configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &configv1alpha1.ImpersonationProxySpec{
			Mode:             "enabled",
			Service:          configv1alpha1.ImpersonationProxyServiceSpec{Type: "None"},
			ExternalEndpoint: "proxy.example.com",
		}},
	}))
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

// frozen fakes an informer whose watch has stopped: it returns an old CredentialIssuer.
type frozen struct {
	issuer *configv1alpha1.CredentialIssuer
	reads  atomic.Int32
}

func (f *frozen) Get(context.Context, types.NamespacedName) (*configv1alpha1.CredentialIssuer, bool, error) {
	f.reads.Add(1)
	return f.issuer.DeepCopy(), true, nil
}

func (*frozen) Forget(func(types.NamespacedName) bool) {}

// TestAnOldViewOfTheCredentialIssuer has a leader with an outdated spec. It creates and deletes nothing: the address of
// the load balancer would be lost.
func TestAnOldViewOfTheCredentialIssuer(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	first := startReplica(t, cluster, "default", true)
	first.create(t, spec{Mode: "enabled", ExternalEndpoint: "a.example.com", Service: svc{Type: "ClusterIP"}})
	first.waitFor(t, "Listening", messageListening)
	old := &configv1alpha1.CredentialIssuer{}
	must.Do(t, first.live.Get(t.Context(), types.NamespacedName{Name: testNames.CredentialIssuer}, old))
	first.configure(t, func(s *spec) { s.Service = svc{Type: "LoadBalancer"} })
	var before *corev1.Service
	testkit.Eventually(t, waitLimit, func() (err error) {
		if _, err := first.service(t, "ip"); err == nil {
			return errors.New("the ClusterIP Service is still there")
		}
		before, err = first.service(t, "lb")
		return err
	})

	first.leading.Store(false)
	view := &frozen{issuer: old}
	second := startReplicaWith(t, cluster, "default", "second", true, func(r *Reconciler) { r.Issuers = view })
	testkit.Eventually(t, waitLimit, func() error {
		second.notify()
		if reads := view.reads.Load(); reads < 4 {
			return fmt.Errorf("reconciled %d times", reads)
		}
		return nil
	})
	if after, err := first.service(t, "lb"); err != nil || after.UID != before.UID {
		t.Errorf("the load balancer was removed by an old view: %v, %v", after.UID, err)
	}
	if _, err := first.service(t, "ip"); err == nil {
		t.Error("a Service was made by an old view")
	}
}
