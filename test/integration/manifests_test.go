package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
)

// TestMonitoringIsAccepted has the API server judge the optional manifests for Prometheus on top of the others.
func TestMonitoringIsAccepted(t *testing.T) {
	w := needsCluster(t)
	overlay := t.TempDir()
	deploy, err := filepath.Rel(overlay, w.Deploy)
	if err != nil {
		t.Fatal(err)
	}
	content := fmt.Sprintf("resources: [%[1]s/concierge]\ncomponents: [%[1]s/monitoring]\n", filepath.ToSlash(deploy))
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	// The rest is applied already, and the Service of the Concierge APIs leads elsewhere in this world.
	var changed []string
	for document := range strings.SplitSeq(w.succeed(t, w.kubectl, "kustomize", overlay), "\n---\n") {
		for _, kind := range []string{"\nkind: Deployment\n", "\nkind: NetworkPolicy\n", "\n  name: " +
			"pinniped-concierge-metrics\n"} {
			if strings.Contains("\n"+document, kind) {
				changed = append(changed, document)
			}
		}
	}
	file := filepath.Join(overlay, "changed.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(changed, "\n---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	applied := w.succeed(
		t,
		w.kubectl,
		"--kubeconfig="+w.Cluster.AdminKubeconfig(),
		"apply",
		"--server-side",
		"--force-conflicts",
		"--dry-run=server",
		"--filename="+file,
		"--output=yaml",
	)
	for _, want := range []string{
		"name: pinniped-concierge-metrics", "kind: NetworkPolicy", `value: :8446`, "name: metrics",
	} {
		if !strings.Contains(applied, want) {
			t.Errorf("there is no %q in what the API server would have", want)
		}
	}
}

// TestAnUpgradeKeepsTheConfiguration shows that the manifests of an upgrade are those of an installation without the
// CredentialIssuer, which administrators have changed by then, and without the Namespace, whose labels are theirs.
func TestAnUpgradeKeepsTheConfiguration(t *testing.T) {
	w := needsCluster(t)
	documents := func(folder string) []string {
		all := strings.Split(
			strings.TrimSpace(w.succeed(t, w.kubectl, "kustomize", filepath.Join(w.Deploy, folder))),
			"\n---\n",
		)
		return slices.DeleteFunc(all, func(document string) bool {
			return folder == "concierge" && (strings.Contains("\n"+document, "\nkind: CredentialIssuer\n") ||
				strings.Contains("\n"+document, "\nkind: Namespace\n"))
		})
	}
	upgrade := documents("upgrade")
	if diff := cmp.Diff(documents("concierge"), upgrade); diff != "" {
		t.Errorf(
			"an upgrade differs from the installation without its CredentialIssuer and Namespace (-want +got):\n%s",
			diff,
		)
	}
	if all := strings.Join(
		upgrade,
		"\n",
	); strings.Contains("\n"+all, "\nkind: CredentialIssuer\n") || strings.Contains("\n"+all, "\nkind: Namespace\n") ||
		!strings.Contains(all, "kind: Deployment") {
		t.Error("an upgrade has a CredentialIssuer or a Namespace, or no Deployment")
	}
}

// TestThePodsAreAdmitted asks the API server to admit the pods of the shipped Deployments in their namespaces, which
// enforce the restricted pod security standard, and one that is privileged, which must be refused.
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

// TestTheDeploymentNoticesSoon shows how the API server understands the shipped Deployment: how soon a replica that hangs
// gets no new connections, how long a rollout waits, and that replicas are spread without being held back.
func TestTheDeploymentNoticesSoon(t *testing.T) {
	w := needsCluster(t)
	var deployment appsv1.Deployment
	name := types.NamespacedName{Namespace: devinstall.Namespace, Name: "pinniped-concierge"}
	if err := w.admin.Get(t.Context(), name, &deployment); err != nil {
		t.Fatal(err)
	}
	spec := deployment.Spec.Template.Spec
	ready := spec.Containers[0].ReadinessProbe
	if noticed := ready.PeriodSeconds*ready.FailureThreshold + ready.TimeoutSeconds; noticed > 8 ||
		ready.FailureThreshold < 3 {
		t.Errorf("a replica that hangs is noticed after %d s and %d failures", noticed, ready.FailureThreshold)
	}
	if deployment.Spec.MinReadySeconds < 1 || deployment.Spec.MinReadySeconds > 10 {
		t.Errorf("minReadySeconds is %d", deployment.Spec.MinReadySeconds)
	}
	keys := map[string]bool{}
	for _, constraint := range spec.TopologySpreadConstraints {
		keys[constraint.TopologyKey] = constraint.WhenUnsatisfiable == corev1.ScheduleAnyway && constraint.MaxSkew == 1
		if !cmp.Equal(constraint.LabelSelector.MatchLabels, map[string]string{"deployment.pinniped.dev": "concierge"}) {
			t.Errorf("it spreads %v", constraint.LabelSelector)
		}
	}
	if diff := cmp.Diff(map[string]bool{corev1.LabelHostname: true, corev1.LabelTopologyZone: true}, keys); diff != "" {
		t.Errorf("spread over (-want +got):\n%s", diff)
	}
}
