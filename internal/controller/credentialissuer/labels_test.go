package credentialissuer

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

// TestOtherLabels reconfigures the labels of an agent: everything that the agent created gets them.
func TestOtherLabels(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	with := func(labels map[string]string) func(*Reconciler) {
		return func(r *Reconciler) { r.Labels = labels }
	}
	before := startReplicaWith(t, cluster, "default", "before", true, with(map[string]string{"app": "x", "old": "1"}))
	before.create(t, spec{Mode: "enabled", Service: svc{Type: "ClusterIP"}, ExternalEndpoint: "proxy.example.com"})
	before.waitFor(t, "Listening", messageListening)
	names := []string{testNames.SignerSecret, testNames.CASecret, testNames.TLSSecret}
	have := func(r *replica, want map[string]string) {
		t.Helper()
		testkit.Eventually(t, waitLimit, func() error {
			for _, name := range names {
				secret, there := r.secret(t, name)
				if !there {
					return fmt.Errorf("there is no Secret %s", name)
				}
				if diff := cmp.Diff(want, secret.Labels); diff != "" {
					return fmt.Errorf("labels of Secret %s (-want +got):\n%s", name, diff)
				}
			}
			service, err := r.service(t, testNames.ClusterIPService)
			if err != nil {
				return err
			}
			labels := map[string]string{"app": want["app"], "team": want["team"]}
			if !maps.Equal(service.Labels, labels) && want["old"] == "" {
				return fmt.Errorf("labels of the Service: %v", service.Labels)
			}
			return nil
		})
	}
	have(before, map[string]string{"app": "x", "old": "1"})
	for _, name := range names { // a label of another writer
		var secret corev1.Secret
		testkit.Eventually(t, waitLimit, func() error {
			if err := before.live.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, &secret); err != nil {
				return err
			}
			secret.Labels["backup"] = "no"
			return before.live.Update(t.Context(), &secret)
		})
	}
	before.leading.Store(false)
	after := startReplicaWith(t, cluster, "default", "after", true, with(map[string]string{"app": "y", "team": "blue"}))
	have(after, map[string]string{"app": "y", "team": "blue", "backup": "no"})
}

func TestDecideLabels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, test := range []struct {
		name string
		see  func(s *observed)
		spec spec
		want string
	}{
		{"relabels what is there", func(*observed) {}, spec{ExternalEndpoint: "proxy.example.com"}, "relabel generated-ca generated-tls signer"},
		{"leaves it to the leader", func(s *observed) { s.leads = false }, spec{ExternalEndpoint: "proxy.example.com"}, ""},
		{
			"leaves alone what an admin named", func(s *observed) { s.evaluation, s.serving = refusal("X"), w.external },
			spec{ExternalEndpoint: "proxy.example.com", TLS: &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "generated-tls"}},
			"relabel generated-ca signer",
		},
		{
			"leaves alone what it did not make", func(s *observed) { s.put(testNames.LastKnownGoodSecret, w.leaf.Data()) },
			spec{ExternalEndpoint: "proxy.example.com"},
			"relabel generated-ca generated-tls signer",
		},
		{
			"leaves alone what holds a user's content",
			func(s *observed) { s.secrets[testNames.SignerSecret].secret.Annotations = nil },
			spec{ExternalEndpoint: "proxy.example.com"},
			"relabel generated-ca generated-tls",
		},
	} {
		s := w.everything()
		s.labels = map[string]string{"team": "blue"}
		for _, read := range s.secrets {
			read.secret.Annotations = map[string]string{"credentialissuer.pinniped.dev/label-keys": ""}
		}
		test.see(&s)
		got := ""
		for _, a := range decide(desired(t, test.spec), s).actions {
			if a.step() == stepLabels {
				got = a.String()
			}
		}
		if got != test.want {
			t.Errorf("it %s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// TestOwners makes a Deployment, as upstream Pinniped does, and another object owners of the agent's objects: the
// Deployment is removed from the owners, and the other stays.
func TestOwners(t *testing.T) {
	t.Parallel()
	r := startReplicaWith(t, startCluster(t), "default", "agent", true, func(*Reconciler) {})
	r.create(t, spec{Mode: "enabled", Service: svc{Type: "ClusterIP"}, ExternalEndpoint: "proxy.example.com"})
	r.waitFor(t, "Listening", messageListening)
	deployment := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "pinniped-concierge", UID: "1"}
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "backup", UID: "2"}
	objects := map[string]client.Object{testNames.ClusterIPService: &corev1.Service{}}
	for _, name := range []string{testNames.SignerSecret, testNames.CASecret, testNames.TLSSecret} {
		objects[name] = &corev1.Secret{}
	}
	for name, object := range objects {
		testkit.Eventually(t, waitLimit, func() error {
			if err := r.live.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, object); err != nil {
				return err
			}
			object.SetOwnerReferences([]metav1.OwnerReference{deployment, other})
			return r.live.Update(t.Context(), object)
		})
	}
	for name, object := range objects {
		testkit.Eventually(t, waitLimit, func() error {
			if err := r.live.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, object); err != nil {
				return err
			}
			if diff := cmp.Diff([]metav1.OwnerReference{other}, object.GetOwnerReferences()); diff != "" {
				return fmt.Errorf("owners of %s (-want +got):\n%s", name, diff)
			}
			return nil
		})
	}
}
