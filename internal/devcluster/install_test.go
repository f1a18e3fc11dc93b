package devcluster

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: seals.demo.example.com}
spec:
  group: demo.example.com
  scope: Namespaced
  names: {plural: seals, singular: seal, kind: Seal}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const resource = `
apiVersion: demo.example.com/v1
kind: Seal
metadata: {name: %, namespace: default}
spec: {colour: grey}
`

func TestInstall(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, Options{})
	dir := t.TempDir()
	// The resource comes before its definition on purpose.
	writeFile(t, filepath.Join(dir, "plain", "a.yaml"), strings.ReplaceAll(resource, "%", "plain"), 0o600)
	writeFile(t, filepath.Join(dir, "plain", "b.yaml"), definition, 0o600)
	writeFile(t, filepath.Join(dir, "single.yaml"), strings.ReplaceAll(resource, "%", "single"), 0o600)
	writeFile(t, filepath.Join(dir, "kustomized", "seal.yaml"), strings.ReplaceAll(resource, "%", "base"), 0o600)
	writeFile(
		t,
		filepath.Join(dir, "kustomized", "kustomization.yaml"),
		"namePrefix: kustomized-\nresources: [seal.yaml]\n",
		0o600,
	)

	paths := []string{filepath.Join(dir, "plain"), filepath.Join(dir, "single.yaml"), filepath.Join(dir, "kustomized")}
	for range 2 { // the second call changes nothing
		if err := cluster.Install(t.Context(), paths...); err != nil {
			t.Fatal(err)
		}
	}
	client, err := dynamic.NewForConfig(cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	list, err := client.Resource(schema.GroupVersionResource{Group: "demo.example.com", Version: "v1", Resource: "seals"}).
		List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, item := range list.Items {
		names = append(names, item.GetName())
	}
	if diff := cmp.Diff([]string{"kustomized-base", "plain", "single"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	t.Run("installs the definitions of this repository", func(t *testing.T) {
		wd := repositoryRoot(systemFinder().starts[0])
		if err := cluster.Install(t.Context(), filepath.Join(wd, "deploy", "crds")); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("names a path that does not exist", func(t *testing.T) {
		path := filepath.Join(dir, "none.yaml")
		if err := cluster.Install(t.Context(), path); !strings.Contains(errorText(err), path) {
			t.Errorf("want an error with %q, got %v", path, err)
		}
	})
	t.Run("shows what the API server refuses", func(t *testing.T) {
		path := filepath.Join(dir, "bad.yaml")
		writeFile(t, path, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Not_A_Name, namespace: default}\n", 0o600)
		if err := cluster.Install(t.Context(), path); !strings.Contains(errorText(err), "Not_A_Name") {
			t.Errorf("want the refused name in the error, got %v", err)
		}
	})
}

func TestServedPaths(t *testing.T) {
	t.Parallel()
	got := servedPaths(&unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"group": "demo.example.com",
		"names": map[string]any{"plural": "seals"},
		"versions": []any{
			map[string]any{"name": "v1", "served": true},
			map[string]any{"name": "v1alpha1", "served": false},
			map[string]any{"name": "v2", "served": true},
		},
	}}})
	want := []string{"/apis/demo.example.com/v1/seals", "/apis/demo.example.com/v2/seals"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
