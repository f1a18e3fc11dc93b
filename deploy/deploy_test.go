// Package deploy tests the manifests next to it, as kustomize renders them.
package deploy

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
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	psaapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// folders returns the folders next to this file with a kustomization of this kind.
func folders(t *testing.T, kind string) []string {
	t.Helper()
	all, err := filepath.Glob("*/kustomization.yaml")
	if err != nil || len(all) == 0 {
		t.Fatalf("found no kustomization: %v", err)
	}
	var found []string
	for _, file := range all {
		content := must.Get(os.ReadFile(file))(t)
		var head struct{ Kind string }
		must.Do(t, yaml.Unmarshal(content, &head))
		if head.Kind == kind {
			found = append(found, filepath.Dir(file))
		}
	}
	return found
}

// rendered returns the objects of a kustomization.
func rendered(t *testing.T, folder string) []map[string]any {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		t.Fatalf("%s: %v", folder, err)
	}
	var objects []map[string]any
	for _, resource := range made.Resources() {
		object := must.Get(resource.Map())(t)
		objects = append(objects, object)
	}
	return objects
}

func deployments(t *testing.T, folder string) []*appsv1.Deployment {
	t.Helper()
	return objectsOf[appsv1.Deployment](t, folder, "Deployment")
}

// objectsOf returns the objects of a kind in a kustomization, which may have no unknown fields.
func objectsOf[T any](t *testing.T, folder, kind string) (found []*T) {
	t.Helper()
	for _, object := range rendered(t, folder) {
		if object["kind"] == kind {
			typed := new(T)
			err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object, typed, true)
			if err != nil {
				t.Fatalf("%s: %v", folder, err)
			}
			found = append(found, typed)
		}
	}
	return found
}

// TestPodSecurity checks every shipped pod against the Pod Security Standard "restricted".
func TestPodSecurity(t *testing.T) {
	t.Parallel()
	evaluator := must.Get(policy.NewEvaluator(policy.DefaultChecks(), nil))(t)
	restricted := psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}
	judged := 0
	for _, folder := range folders(t, "Kustomization") {
		for _, deployment := range deployments(t, folder) {
			template := deployment.Spec.Template
			result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &template.ObjectMeta, &template.Spec))
			if !result.Allowed {
				t.Errorf("%s: Deployment %s: %s", folder, deployment.Name, result.ForbiddenDetail())
			}
			judged++
		}
	}
	if judged < 2 {
		t.Errorf("judged %d Deployments, want that of the agent and that of the local-user-authenticator at least", judged)
	}
}

// TestContainers checks what Pod Security does not: no CPU limit, which would throttle TLS handshakes; a read-only root
// file system; and a memory limit.
func TestContainers(t *testing.T) {
	t.Parallel()
	for _, folder := range folders(t, "Kustomization") {
		for _, deployment := range deployments(t, folder) {
			spec := deployment.Spec.Template.Spec
			if spec.EnableServiceLinks == nil || *spec.EnableServiceLinks {
				t.Errorf("%s: Services add variables to the environment of %s", folder, deployment.Name)
			}
			for _, container := range spec.Containers {
				name := folder + ": " + deployment.Name + "/" + container.Name
				if !container.Resources.Limits.Cpu().IsZero() {
					t.Errorf("%s has a CPU limit", name)
				}
				if container.Resources.Limits.Memory().IsZero() || container.Resources.Requests.Memory().IsZero() {
					t.Errorf("%s has no request and limit of memory", name)
				}
				if container.Resources.Limits.StorageEphemeral().IsZero() || container.Resources.Requests.Cpu().IsZero() {
					t.Errorf("%s has no request of CPU, or no limit of ephemeral storage", name)
				}
				if security := container.SecurityContext; security == nil || security.ReadOnlyRootFilesystem == nil ||
					!*security.ReadOnlyRootFilesystem {
					t.Errorf("%s may write its file system", name)
				}
				if container.ReadinessProbe == nil || container.LivenessProbe == nil {
					t.Errorf("%s lacks a probe", name)
				}
				if !strings.HasPrefix(container.Image, "ghcr.io/pinniped-toolkit/pinniped-agent:") {
					t.Errorf("%s runs image %q, which make image does not make", name, container.Image)
				}
			}
		}
	}
}

// TestStartingIsGivenTime checks that the kubelet does not kill an agent that waits for the API server at its start:
// the back-off of restarts would outlast the outage. A running agent that hangs is killed soon.
func TestStartingIsGivenTime(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"concierge", "upgrade"} {
		for _, deployment := range deployments(t, folder) {
			container := deployment.Spec.Template.Spec.Containers[0]
			start, live := container.StartupProbe, container.LivenessProbe
			if start == nil || !cmp.Equal(start.ProbeHandler, live.ProbeHandler) {
				t.Errorf("%s: %s has no time to start: %+v", folder, deployment.Name, start)
				continue
			}
			if given := start.PeriodSeconds * start.FailureThreshold; given < 30*60 {
				t.Errorf("%s: %s is killed after %d s of waiting", folder, deployment.Name, given)
			}
			if noticed := live.PeriodSeconds*live.FailureThreshold + live.TimeoutSeconds; noticed > 2*60 {
				t.Errorf("%s: %s may hang for %d s", folder, deployment.Name, noticed)
			}
		}
	}
}

// TestNetworkPolicy checks that the policy of each Deployment opens exactly the ports that its containers listen on.
func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"concierge", "local-user-authenticator"} {
		deployment := deployments(t, folder)[0]
		var listens, opened []string
		for _, port := range deployment.Spec.Template.Spec.Containers[0].Ports {
			listens = append(listens, fmt.Sprint(port.ContainerPort))
		}
		policies := objectsOf[networkingv1.NetworkPolicy](t, folder, "NetworkPolicy")
		for _, policy := range policies {
			selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
			if err != nil || !selector.Matches(labels.Set(deployment.Spec.Template.Labels)) {
				t.Errorf("%s: it is not about the pods: %v, %v", folder, policy.Spec.PodSelector, err)
			}
			if !slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
				t.Errorf("%s: it limits no connections to the pods, but %v", folder, policy.Spec.PolicyTypes)
			}
			for _, rule := range policy.Spec.Ingress {
				if len(rule.Ports) == 0 {
					t.Errorf("%s: a rule without ports opens all of them", folder)
				}
				for _, port := range rule.Ports {
					if port.Port == nil || port.EndPort != nil {
						t.Errorf("%s: a rule opens more than one port", folder)
						continue
					}
					opened = append(opened, port.Port.String())
				}
			}
		}
		slices.Sort(listens)
		slices.Sort(opened)
		if len(policies) != 1 || !slices.Equal(listens, opened) {
			t.Errorf("%s: %d policies open ports %v, and the container listens on %v", folder, len(policies), opened, listens)
		}
	}
}

// TestTheWebhookTakesAgentsOnly checks that the local-user-authenticator accepts connections only from the agent's
// pods. Anyone can label a pod, so the policy also selects the namespace, by the label that the API server sets.
func TestTheWebhookTakesAgentsOnly(t *testing.T) {
	t.Parallel()
	agent := deployments(t, "concierge")[0]
	matches := func(selector *metav1.LabelSelector, set labels.Set) bool {
		selects := must.Get(metav1.LabelSelectorAsSelector(selector))(t)
		return selects.Matches(set)
	}
	policies := objectsOf[networkingv1.NetworkPolicy](t, "local-user-authenticator", "NetworkPolicy")
	for _, rule := range policies[0].Spec.Ingress {
		if len(rule.From) == 0 {
			t.Error("it takes connections from everywhere")
		}
		for _, from := range rule.From {
			if !matches(from.PodSelector, agent.Spec.Template.Labels) || matches(from.PodSelector, nil) {
				t.Errorf("it takes connections from pods %v, and the agent is %v", from.PodSelector, agent.Spec.Template.Labels)
			}
			if !matches(from.NamespaceSelector, labels.Set{corev1.LabelMetadataName: agent.Namespace}) {
				t.Errorf("it takes no connections from the agent's namespace: %v", from.NamespaceSelector)
			}
			tenant := labels.Set{corev1.LabelMetadataName: "tenant", "app": "pinniped-concierge", "name": agent.Namespace}
			if matches(from.NamespaceSelector, tenant) || matches(from.NamespaceSelector, nil) {
				t.Errorf("it takes connections from other namespaces: %v", from.NamespaceSelector)
			}
		}
	}
}

// TestProcessors checks that the agent uses as many CPUs as it requests, not all of the node.
func TestProcessors(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"concierge", "upgrade"} {
		container := deployments(t, folder)[0].Spec.Template.Spec.Containers[0]
		at := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "GOMAXPROCS" })
		if at < 0 || container.Env[at].ValueFrom == nil || container.Env[at].ValueFrom.ResourceFieldRef == nil {
			t.Errorf("%s: GOMAXPROCS does not follow the request: %v", folder, container.Env)
			continue
		}
		// Kubernetes rounds up to the divisor: 100m is 1, 1100m is 2.
		ref := container.Env[at].ValueFrom.ResourceFieldRef
		if ref.Resource != "requests.cpu" || ref.ContainerName != "" || ref.Divisor.Cmp(resource.MustParse("1")) != 0 {
			t.Errorf("%s: GOMAXPROCS is %v, want the request in whole processors", folder, ref)
		}
	}
}

// TestTokensAreMounted checks that a pod gets a service account token only if it requests one itself.
func TestTokensAreMounted(t *testing.T) {
	t.Parallel()
	accounts := 0
	for _, folder := range folders(t, "Kustomization") {
		for _, object := range rendered(t, folder) {
			if object["kind"] == "ServiceAccount" {
				accounts++
				if object["automountServiceAccountToken"] != false {
					t.Errorf("%s: a token is mounted into every pod of ServiceAccount %v", folder, object["metadata"])
				}
			}
		}
		for _, deployment := range deployments(t, folder) {
			if mounted := deployment.Spec.Template.Spec.AutomountServiceAccountToken; mounted == nil || !*mounted {
				t.Errorf("%s: Deployment %s gets no token", folder, deployment.Name)
			}
		}
	}
	if accounts < 4 {
		t.Errorf("looked at %d service accounts, want those of agent, proxy, webhook and users' accounts at least", accounts)
	}
}
