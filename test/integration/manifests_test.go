package integration

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
)

// TestThePodsAreAdmitted asks the API server to admit the pods of the shipped Deployments in their namespaces, which enforce the restricted pod
// security standard, and one that is privileged, which must be refused.
func TestThePodsAreAdmitted(t *testing.T) {
	w := needsCluster(t)
	for _, name := range []types.NamespacedName{
		{Namespace: devinstall.Namespace, Name: "pinniped-concierge"},
		{Namespace: devinstall.LocalUserNamespace, Name: "local-user-authenticator"},
	} {
		var deployment appsv1.Deployment
		if err := w.admin.Get(t.Context(), name, &deployment); err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: "probe", Labels: deployment.Spec.Template.Labels},
			Spec:       deployment.Spec.Template.Spec,
		}
		if err := w.admin.Create(t.Context(), pod.DeepCopy(), client.DryRunAll); err != nil {
			t.Errorf("the pod of Deployment %s: %v", name, err)
		}
		pod.Spec.HostNetwork = true
		if err := w.admin.Create(t.Context(), pod, client.DryRunAll); err == nil {
			t.Errorf("namespace %s admits pods on the host's network", name.Namespace)
		}
	}
}
