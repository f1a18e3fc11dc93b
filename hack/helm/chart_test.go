package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

const (
	source    = "../../deploy/concierge"
	shipped   = "../../deploy/helm"
	namespace = "pinniped-concierge"
)

// rendered is what `helm template` prints, by kind and name.
func rendered(t *testing.T, in string, values map[string]any) map[string]map[string]any {
	t.Helper()
	objects, err := tryRender(t, in, values)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func tryRender(t *testing.T, in string, values map[string]any) (map[string]map[string]any, error) {
	t.Helper()
	c, err := loader.Load(shipped)
	if err != nil {
		t.Fatal(err)
	}
	release := common.ReleaseOptions{Name: "agent", Namespace: in, IsInstall: true}
	all, err := util.ToRenderValues(c, values, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	objects := map[string]map[string]any{}
	for file, content := range files {
		if strings.HasSuffix(file, ".txt") || strings.TrimSpace(content) == "" {
			continue
		}
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(content), &object); err != nil {
			t.Fatalf("%s: %v\n%s", file, err, content)
		}
		if object != nil {
			objects[kindOf(object)+" "+nameOf(object)] = object
		}
	}
	return objects, nil
}

// TestRendersTheSameObjects compares what Helm renders with what kustomize does.
func TestRendersTheSameObjects(t *testing.T) {
	t.Parallel()
	objects, err := render(source)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]any{}
	for _, object := range objects {
		want[kindOf(object)+" "+nameOf(object)] = object
	}
	got := rendered(t, namespace, map[string]any{"namespace": map[string]any{"create": true}})
	for _, objects := range []map[string]map[string]any{want, got} {
		for _, object := range objects {
			normalize(t, object)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-kustomize +helm:\n%s", diff)
	}
}

// TestExtras compares what the chart's switches add with what kustomize makes of the folders.
func TestExtras(t *testing.T) {
	t.Parallel()
	usual := rendered(t, namespace, nil)
	for _, e := range extras() {
		got := rendered(t, namespace, switched(e))
		kind := "resources"
		if e.component {
			kind = "components"
		}
		want := map[string]map[string]any{}
		for _, object := range combined(t, kind, e.folder) {
			want[kindOf(object)+" "+nameOf(object)] = object
		}
		delete(want, "Namespace "+namespace) // another switch
		if len(got) <= len(usual) {
			t.Errorf("%s adds no object", e.value)
		}
		for _, objects := range []map[string]map[string]any{want, got} {
			for _, object := range objects {
				normalize(t, object)
			}
		}
		sorted := cmpopts.SortSlices(
			func(a, b any) bool { return fmt.Sprint(child(a, "name")) < fmt.Sprint(child(b, "name")) },
		)
		if diff := cmp.Diff(want, got, sorted); diff != "" {
			t.Errorf("%s: -kustomize +helm:\n%s", e.value, diff)
		}
	}
}

// switched are the values that switch an extra on.
func switched(e extra) map[string]any {
	name, field, _ := strings.Cut(e.value, ".")
	return map[string]any{name: map[string]any{field: true}}
}

// combined are the objects of deploy/concierge with another folder of deploy.
func combined(t *testing.T, kind, folder string) []map[string]any {
	t.Helper()
	deploy, err := filepath.Abs(filepath.Dir(source))
	if err != nil {
		t.Fatal(err)
	}
	together := t.TempDir()
	here, err := filepath.EvalSymlinks(together)
	if err != nil {
		t.Fatal(err)
	}
	path := func(name string) string {
		relative, err := filepath.Rel(here, filepath.Join(deploy, name))
		if err != nil {
			t.Fatal(err)
		}
		return relative
	}
	list := map[string][]string{"resources": {path("concierge")}}
	list[kind] = append(list[kind], path(folder))
	content, err := yaml.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(together, "kustomization.yaml"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := render(together)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// normalize makes what means the same equal: the text of the configuration is compared as what it says, fields that are
// empty are left out, and Helm's own annotations, too.
func normalize(t *testing.T, object map[string]any) {
	t.Helper()
	if data, ok := object["data"].(map[string]any); ok {
		if text, ok := data["pinniped.yaml"].(string); ok {
			var decoded any
			if err := yaml.Unmarshal([]byte(text), &decoded); err != nil {
				t.Fatal(err)
			}
			data["pinniped.yaml"] = decoded
		}
	}
	for _, annotated := range []any{object, child(child(object, "spec"), "template")} {
		if annotations, ok := child(child(annotated, "metadata"), "annotations").(map[string]any); ok {
			delete(annotations, "helm.sh/resource-policy")
			delete(annotations, "checksum/config")
		}
	}
	prune(object)
}

func prune(node any) {
	switch node := node.(type) {
	case map[string]any:
		for key, child := range node {
			prune(child)
			switch child := child.(type) {
			case map[string]any:
				if len(child) == 0 && key != "emptyDir" {
					delete(node, key)
				}
			case []any:
				if len(child) == 0 {
					delete(node, key)
				}
			case string:
				if child == "" && key == "priorityClassName" {
					delete(node, key)
				}
			}
		}
	case []any:
		for _, child := range node {
			prune(child)
		}
	}
}

// TestAnotherNamespace looks for places that the release's namespace has not reached.
func TestAnotherNamespace(t *testing.T) {
	t.Parallel()
	var walk func(path string, node any)
	everything := map[string]any{"namespace": map[string]any{"create": true}}
	for _, e := range extras() {
		everything = util.CoalesceTables(everything, switched(e))
	}
	for name, object := range rendered(t, "elsewhere", everything) {
		walk = func(path string, node any) {
			switch node := node.(type) {
			case map[string]any:
				for key, child := range node {
					if key == "namespace" && child == namespace {
						t.Errorf("%s: %s.%s is %s", name, path, key, child)
					}
					if text, ok := child.(string); ok && strings.Contains(text, "serviceaccount:"+namespace+":") {
						t.Errorf("%s: %s.%s is %s", name, path, key, child)
					}
					walk(path+"."+key, child)
				}
			case []any:
				for _, child := range node {
					walk(path+"[]", child)
				}
			}
		}
		walk("", object)
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	image := "registry.example.com:5000/agent@sha256:" + strings.Repeat("a", 64)
	objects := rendered(t, namespace, map[string]any{
		"image":             image,
		"replicas":          3,
		"crds":              map[string]any{"install": false},
		"flowControl":       map[string]any{"enabled": false},
		"networkPolicy":     map[string]any{"enabled": false},
		"nodeSelector":      map[string]any{"pool": "system"},
		"imagePullSecrets":  []any{map[string]any{"name": "registry"}},
		"priorityClassName": "system-cluster-critical",
		"config":            map[string]any{"log": map[string]any{"level": "debug"}},
	})
	deployment := objects["Deployment pinniped-concierge"]
	for path, want := range map[string]any{
		"spec.replicas": float64(3), container + "image": image, pod + "nodeSelector.pool": "system",
		pod + "imagePullSecrets.0.name": "registry", pod + "priorityClassName": "system-cluster-critical",
	} {
		var got any = deployment
		for key := range strings.SplitSeq(path, ".") {
			got = child(got, key)
		}
		if got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	checksum := func(d map[string]any) any {
		return child(child(child(child(child(d, "spec"), "template"), "metadata"), "annotations"), "checksum/config")
	}
	if usual := rendered(t, namespace, nil)["Deployment pinniped-concierge"]; checksum(deployment) == nil ||
		checksum(deployment) == checksum(usual) {
		t.Errorf("another configuration has the checksum %v, too: the pods would not be replaced", checksum(deployment))
	}
	for name := range objects {
		if strings.HasPrefix(name, "CustomResourceDefinition") || strings.HasPrefix(name, "FlowSchema") ||
			strings.HasPrefix(name, "NetworkPolicy") || strings.HasPrefix(name, "Namespace") {
			t.Errorf("%s was not wanted", name)
		}
	}
	text, err := json.Marshal(objects["ConfigMap pinniped-concierge-agent"])
	if err != nil || !bytes.Contains(text, []byte("level: debug")) || !bytes.Contains(text, []byte("shutdownDelay")) {
		t.Errorf("got %s (%v), want the level, and the rest as it is", text, err)
	}
}

// TestKept looks for what must outlive the release: the kinds without which the configuration would be deleted.
func TestKept(t *testing.T) {
	t.Parallel()
	kept := 0
	for name, object := range rendered(t, namespace, nil) {
		annotations, _ := child(child(object, "metadata"), "annotations").(map[string]any)
		if strings.HasPrefix(name, "CredentialIssuer ") {
			t.Errorf("%s is rendered, and would be changed with each release", name)
		}
		if strings.HasPrefix(name, "CustomResourceDefinition ") {
			kept++
			if annotations["helm.sh/resource-policy"] != "keep" {
				t.Errorf("%s would be deleted with the release", name)
			}
		}
	}
	if kept < 3 {
		t.Errorf("found %d objects to keep, want three CRDs at least", kept)
	}
}

func issuerSpec(proxy map[string]any) map[string]any {
	return map[string]any{"credentialIssuerSpec": map[string]any{"impersonationProxy": proxy}}
}

func TestSchemaTakes(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]map[string]any{
		"no first CredentialIssuer": {"credentialIssuerSpec": nil},
		"a configured one":          issuerSpec(map[string]any{"mode": "enabled", "externalEndpoint": "proxy.example.com"}),
		"labels":                    {"labels": map[string]any{"example.com/team": "blue"}},
		"Pinniped's keys": {
			"kubeCertAgent": map[string]any{"image": "i"}, "discovery": map[string]any{"url": nil},
			"names": map[string]any{"agentServiceAccount": "x"},
		},
	} {
		if _, err := tryRender(t, namespace, map[string]any{"config": config}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]map[string]any{
		"a misspelled name":   {"replica": 3},
		"a text as number":    {"replicas": "three"},
		"no replica":          {"replicas": 0},
		"an image untagged":   {"image": "agent"},
		"an unknown policy":   {"imagePullPolicy": "Sometimes"},
		"a misspelled child":  {"crds": map[string]any{"instal": false}},
		"a misspelled key":    {"config": map[string]any{"logg": map[string]any{"level": "debug"}}},
		"a key of no release": {"config": map[string]any{"limits": map[string]any{"connection": 5}}},
		"a misspelled mode":   {"config": issuerSpec(map[string]any{"mode": "on"})},
		"a misspelled field":  {"config": issuerSpec(map[string]any{"externalEndpiont": "proxy.example.com"})},
	} {
		if _, err := tryRender(t, namespace, values); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
