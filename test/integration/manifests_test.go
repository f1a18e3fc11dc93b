package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
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
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestEveryManifestIsAccepted has the API server strictly validate everything that the folders of deploy add to the
// installation: every overlay and every component.
func TestEveryManifestIsAccepted(t *testing.T) {
	w := needsCluster(t)
	w.define(t, prometheusModule, "example/prometheus-operator-crd", "servicemonitors.monitoring.coreos.com",
		"prometheusrules.monitoring.coreos.com")
	all := must.Get(filepath.Glob(filepath.Join(w.Deploy, "*", "kustomization.yaml")))(t)
	seen, added := map[string]bool{}, []string{}
	for _, folder := range []string{"concierge", "local-user-authenticator"} { // already installed
		for _, document := range w.kustomized(t, filepath.Join(w.Deploy, folder)) {
			seen[document] = true
		}
	}
	for _, file := range all {
		folder := filepath.Dir(file)
		content := must.Get(os.ReadFile(file))(t)
		if strings.Contains(string(content), "\nkind: Component\n") {
			folder = w.overlay(t, filepath.Base(folder))
		}
		for _, document := range w.kustomized(t, folder) {
			// That namespace does not exist. TestLoginsByTokensOfServiceAccounts installs its objects.
			if !seen[document] && !strings.Contains(document, "\n  namespace: "+userAccounts+"\n") {
				seen[document] = true
				added = append(added, document)
			}
		}
	}
	file := fileWith(t, "added.yaml", []byte(strings.Join(added, "\n---\n")))
	accepted := w.kubectlDoes(t, "apply", "--server-side",
		"--force-conflicts", "--validate=strict", "--dry-run=server", "--filename="+file, "--output=yaml")
	for _, want := range []string{
		"name: pinniped-concierge-metrics", "kind: NetworkPolicy", "name: metrics",
		"name: pinniped-concierge-cluster-signer", "name: pinniped-ip-tls-viewer",
		"kind: ServiceMonitor", "alert: PinnipedCertificateExpired", "kind: ValidatingAdmissionPolicy", "name: " + userAccounts, "name: tlscertificatedelegations.projectcontour.io",
	} {
		if !strings.Contains(accepted, want+"\n") {
			t.Errorf("there is no %q in what the API server would have", want)
		}
	}
}

// kustomized returns the output of kustomize for a folder, by object.
func (w *world) kustomized(t *testing.T, folder string) []string {
	t.Helper()
	return strings.Split(strings.TrimSpace(w.succeed(t, w.kubectl, "kustomize", folder)), "\n---\n")
}

// overlay returns a folder that adds a component to deploy/concierge.
func (w *world) overlay(t *testing.T, component string) string {
	t.Helper()
	folder := t.TempDir()
	deploy := must.Get(filepath.Rel(folder, w.Deploy))(t)
	content := fmt.Sprintf(
		"resources: [%[1]s/concierge]\ncomponents: [%[1]s/%[2]s]\n",
		filepath.ToSlash(deploy),
		component,
	)
	must.Do(t, os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(content), 0o600))
	return folder
}

// TestRoutesAreAccepted has the API server strictly validate the routes that `pinniped ip-tls manifest` prints, with
// the definitions of the Gateway API. The documents' tests have those of Contour and cert-manager.
func TestRoutesAreAccepted(t *testing.T) {
	w := needsCluster(t)
	w.define(t, gatewayModule, "config/crd/standard", "tlsroutes.gateway.networking.k8s.io")
	for kind, arguments := range map[string][]string{
		"tlsroute.gateway.networking.k8s.io": {"--for=gateway-api", "--gateway=gateways/public"},
		"ingress.networking.k8s.io":          {"--for=ingress-nginx"},
	} {
		printed := w.asAdmin(
			t,
			append([]string{"ip-tls", "manifest", "--external-endpoint=proxy.example.com"}, arguments...)...).ok(t)
		file := fileWith(t, "route.yaml", []byte(printed.out))
		accepted := w.kubectlDoes(t, "apply", "--server-side",
			"--validate=strict", "--dry-run=server", "--filename="+file, "--output=name")
		if want := kind + "/impersonation-proxy\n"; accepted != want {
			t.Errorf("%v: the API server would take %q, want %q", arguments, accepted, want)
		}
	}
}

// TestNoInstallationHoldsTheConfiguration shows that the manifests of an upgrade are those of an installation without
// the Namespace, whose labels administrators set, and that neither has a CredentialIssuer, which they change.
func TestNoInstallationHoldsTheConfiguration(t *testing.T) {
	w := needsCluster(t)
	installation := w.kustomized(t, filepath.Join(w.Deploy, "concierge"))
	upgrade := slices.DeleteFunc(slices.Clone(installation), func(document string) bool {
		return strings.Contains("\n"+document, "\nkind: Namespace\n")
	})
	if diff := cmp.Diff(upgrade, w.kustomized(t, filepath.Join(w.Deploy, "upgrade"))); diff != "" {
		t.Errorf("an upgrade differs from the installation without its Namespace (-want +got):\n%s", diff)
	}
	all := "\n" + strings.Join(installation, "\n")
	if strings.Contains(all, "\nkind: CredentialIssuer\n") || !strings.Contains(all, "\nkind: Deployment\n") ||
		len(upgrade) != len(installation)-1 {
		t.Error("an installation has a CredentialIssuer, or no Deployment, or more than one Namespace")
	}
}

// TestThePodsAreAdmitted has the API server admit the pods of the shipped Deployments in their namespaces, which
// enforce the restricted pod security standard. A privileged pod must be rejected.
func TestThePodsAreAdmitted(t *testing.T) {
	w := needsCluster(t)
	for _, name := range []types.NamespacedName{
		{Namespace: devinstall.Namespace, Name: "pinniped-concierge"},
		{Namespace: devinstall.LocalUserNamespace, Name: "local-user-authenticator"},
	} {
		var deployment appsv1.Deployment
		must.Do(t, w.admin.Get(t.Context(), name, &deployment))
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

// TestTheDeploymentNoticesSoon shows how the API server interprets the shipped Deployment: how soon a replica that
// hangs gets no new connections, how long a rollout waits, and that spreading the replicas does not block them.
func TestTheDeploymentNoticesSoon(t *testing.T) {
	w := needsCluster(t)
	var deployment appsv1.Deployment
	must.Do(t, w.admin.Get(t.Context(), ours("pinniped-concierge"), &deployment))
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

// Modules with the CustomResourceDefinitions that the documents and the manifests need.
const (
	certManagerModule = "github.com/cert-manager/cert-manager@v1.21.2"
	contourModule     = "github.com/projectcontour/contour@v1.33.8"
	gatewayModule     = "sigs.k8s.io/gateway-api@v1.6.0"
	prometheusModule  = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
)

// define installs CustomResourceDefinitions by name until the end of the test. They come from a file or folder of a Go
// module, which `go mod download` fetches once.
func (w *world) define(t *testing.T, module, path string, names ...string) {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	download.Dir = t.TempDir() // not in our module: nothing is built
	output, err := download.Output()
	var found struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(output, &found); jsonErr != nil || found.Error != "" {
		t.Skipf("%s cannot be had here: %v %s", module, err, found.Error)
	}
	files := []string{filepath.Join(found.Dir, path)}
	if inside, err := filepath.Glob(filepath.Join(found.Dir, path, "*.yaml")); err == nil && len(inside) > 0 {
		files = inside
	}
	var wanted []string
	for _, file := range files {
		content := must.Get(os.ReadFile(file))(t)
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			for _, name := range names {
				if strings.Contains(document, "\n  name: "+name+"\n") || strings.Contains(document, "\n  name: \""+name+"\"\n") {
					wanted = append(wanted, document)
				}
			}
		}
	}
	if len(wanted) != len(names) {
		t.Fatalf("%s has %d of %v", module, len(wanted), names)
	}
	manifest := fileWith(t, "definitions.yaml", []byte(strings.Join(wanted, "\n---\n")))
	must.Do(t, w.Cluster.Install(t.Context(), manifest))
	t.Cleanup(func() {
		remove := exec.CommandContext(context.WithoutCancel(t.Context()), w.kubectl, "delete", "--filename="+manifest,
			"--kubeconfig="+w.Cluster.AdminKubeconfig())
		if output, err := remove.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, output)
		}
	})
}
