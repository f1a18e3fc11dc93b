package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/agent"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// charted returns the output of `helm template`, by kind and name.
func charted(t *testing.T, namespace string, flags ...string) map[string]map[string]any {
	t.Helper()
	out, err := helmTemplate(t, namespace, flags...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	objects := map[string]map[string]any{}
	for document := range strings.SplitSeq(out, "\n---\n") {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if object != nil {
			objects[identity(object)] = object
		}
	}
	return objects
}

func helmTemplate(t *testing.T, namespace string, flags ...string) (string, error) {
	t.Helper()
	if _, err := os.Stat("../bin/helm"); testing.Short() || err != nil {
		t.Skipf("needs helm, which make bin/helm builds: %v", err)
	}
	command := exec.CommandContext(t.Context(), "../bin/helm",
		append([]string{"template", "pinniped-concierge", "helm", "--namespace=" + namespace}, flags...)...)
	command.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := command.CombinedOutput()
	return string(out), err
}

func identity(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	return fmt.Sprint(object["kind"], " ", metadata["name"])
}

// at returns the value at a path of fields and list indexes.
func at(node any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			fields, _ := node.(map[string]any)
			node = fields[step]
		case int:
			list, _ := node.([]any)
			if step >= len(list) {
				return nil
			}
			node = list[step]
		}
	}
	return node
}

// TestTheChartIsTheKustomization compares the objects of the chart, by default and with each option, with those of
// deploy/concierge and the folders that correspond to the options.
func TestTheChartIsTheKustomization(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, resources, components, switches string }{
		{name: "default"},
		{name: "clustersigner", components: "../clustersigner", switches: "clusterSigner.enabled=true"},
		{name: "monitoring", components: "../monitoring", switches: "monitoring.enabled=true"},
		{
			name: "prometheusoperator", components: "../monitoring, ../prometheusoperator",
			switches: "monitoring.enabled=true,monitoring.prometheusOperator=true",
		},
		{name: "serviceaccounttokens", resources: ", ../serviceaccounttokens", switches: "serviceAccountTokens.enabled=true"},
		{name: "withoutflowcontrol", components: "../withoutflowcontrol", switches: "flowControl.enabled=false"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			set := "--set=namespace.create=true"
			if test.switches != "" {
				set += "," + test.switches
			}
			got := charted(t, agentNamespace, set)
			disk := filesys.MakeFsInMemory()
			copyInto(t, disk)
			content := fmt.Sprintf("resources: [../concierge%s]\ncomponents: [%s]\n", test.resources, test.components)
			must.Do(t, disk.WriteFile("deploy/test/kustomization.yaml", []byte(content)))
			made := must.Get(krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(disk, "deploy/test"))(t)
			want := map[string]map[string]any{}
			for _, resource := range made.Resources() {
				object := must.Get(resource.Map())(t)
				if at(object, "metadata", "annotations", "config.kubernetes.io/local-config") == nil {
					want[identity(object)] = object
				}
			}
			// A kustomize patch adds its items first.
			anyOrder := cmpopts.SortSlices(func(a, b any) bool { return fmt.Sprint(a) < fmt.Sprint(b) })
			for _, objects := range []map[string]map[string]any{want, got} {
				for _, object := range objects {
					normalize(t, object)
				}
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), anyOrder); diff != "" {
				t.Errorf("-kustomize +helm:\n%s", diff)
			}
		})
	}
}

func copyInto(t *testing.T, disk filesys.FileSystem) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return disk.WriteFile(filepath.Join("deploy", path), content)
	})
	must.Do(t, err)
}

// normalize makes equivalent objects equal: numbers, the text of the configuration, and Helm's own annotations.
func normalize(t *testing.T, object map[string]any) {
	t.Helper()
	if text, ok := at(object, "data", "pinniped.yaml").(string); ok {
		var decoded any
		must.Do(t, yaml.Unmarshal([]byte(text), &decoded))
		object["data"].(map[string]any)["pinniped.yaml"] = decoded
	}
	for _, annotated := range []any{object, at(object, "spec", "template")} {
		metadata, _ := at(annotated, "metadata").(map[string]any)
		if annotations, ok := metadata["annotations"].(map[string]any); ok {
			delete(annotations, "helm.sh/resource-policy")
			delete(annotations, "checksum/config")
			if len(annotations) == 0 {
				delete(metadata, "annotations")
			}
		}
	}
	content := must.Get(yaml.Marshal(object))(t)
	clear(object)
	must.Do(t, yaml.Unmarshal(content, &object))
}

// TestTheChartInAnotherNamespace checks that all objects use the release's namespace.
func TestTheChartInAnotherNamespace(t *testing.T) {
	t.Parallel()
	objects := charted(t, "elsewhere", "--set=namespace.create=true,clusterSigner.enabled=true,monitoring.enabled=true,"+
		"monitoring.prometheusOperator=true,serviceAccountTokens.enabled=true")
	for name, object := range objects {
		var walk func(path string, node any)
		walk = func(path string, node any) {
			switch node := node.(type) {
			case map[string]any:
				for key, child := range node {
					if text, ok := child.(string); ok && (key == "namespace" && text == agentNamespace ||
						strings.Contains(text, "serviceaccount:"+agentNamespace+":")) {
						t.Errorf("%s: %s.%s is %s", name, path, key, text)
					}
					walk(path+"."+key, child)
				}
			case []any:
				for _, child := range node {
					if strings.Contains(path, "namespaceSelector") && child == agentNamespace {
						t.Errorf("%s: %s has %s", name, path, child)
					}
					walk(path+"[]", child)
				}
			}
		}
		walk("", object)
	}
	if objects["Namespace elsewhere"] == nil {
		t.Error("the namespace that is made is another one")
	}
}

func TestTheChartsValues(t *testing.T) {
	t.Parallel()
	image := "registry.example.com:5000/agent@sha256:" + strings.Repeat("a", 64)
	objects := charted(t, agentNamespace, "--set=image="+image+",replicas=3,crds.install=false,flowControl.enabled=false,"+
		"networkPolicy.enabled=false,nodeSelector.pool=system,imagePullSecrets[0].name=registry,"+
		"priorityClassName=system-cluster-critical,config.log.level=debug,env[0].name=HTTPS_PROXY,env[0].value=http://proxy,"+
		"affinity.nodeAffinity.x=y", "--kube-version=1.29")
	deployment := objects["Deployment pinniped-concierge"]
	pod := at(deployment, "spec", "template", "spec")
	for what, pair := range map[string][2]any{
		"replicas":    {at(deployment, "spec", "replicas"), float64(3)},
		"image":       {at(pod, "containers", 0, "image"), image},
		"selector":    {at(pod, "nodeSelector", "pool"), "system"},
		"pull Secret": {at(pod, "imagePullSecrets", 0, "name"), "registry"},
		"priority":    {at(pod, "priorityClassName"), "system-cluster-critical"},
		"affinity":    {at(pod, "affinity", "nodeAffinity", "x"), "y"},
		"first env":   {at(pod, "containers", 0, "env", 0, "name"), "PINNIPED_AGENT_NAMESPACE"},
		"last env":    {at(pod, "containers", 0, "env", 3, "name"), "HTTPS_PROXY"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %v, want %v", what, pair[0], pair[1])
		}
	}
	text := fmt.Sprint(at(objects["ConfigMap pinniped-concierge-agent"], "data", "pinniped.yaml"))
	if !strings.Contains(text, "level: debug") || !strings.Contains(text, "shutdownDelay") {
		t.Errorf("got %s, want the level, and the rest as it is", text)
	}
	for name := range objects {
		kind, _, _ := strings.Cut(name, " ")
		if slices.Contains([]string{
			"CustomResourceDefinition", "FlowSchema", "PriorityLevelConfiguration", "NetworkPolicy", "Namespace",
			"ValidatingAdmissionPolicy", // with Kubernetes 1.29
		}, kind) {
			t.Errorf("%s was not wanted", name)
		}
	}
	sum := func(flags ...string) any {
		return at(charted(t, agentNamespace, flags...)["Deployment pinniped-concierge"],
			"spec", "template", "metadata", "annotations", "checksum/config")
	}
	sums := map[any]bool{
		sum(): true, sum("--set=config.log.level=debug"): true, sum("--set=clusterSigner.enabled=true"): true,
		sum("--set=monitoring.enabled=true"): true,
	}
	if len(sums) != 4 || sums[nil] {
		t.Errorf("got checksums %v: another configuration would not replace the pods", slices.Collect(maps.Keys(sums)))
	}
}

// TestTheChartKeepsTheConfiguration checks that the CRDs outlive the release: without them, the CredentialIssuer would
// be deleted.
func TestTheChartKeepsTheConfiguration(t *testing.T) {
	t.Parallel()
	kept := 0
	for name, object := range charted(t, agentNamespace) {
		if strings.HasPrefix(name, "CredentialIssuer ") {
			t.Errorf("%s is rendered, and would be changed with each release", name)
		}
		if strings.HasPrefix(name, "CustomResourceDefinition ") {
			kept++
			if at(object, "metadata", "annotations", "helm.sh/resource-policy") != "keep" {
				t.Errorf("%s would be deleted with the release", name)
			}
		}
	}
	if kept < 3 {
		t.Errorf("found %d CRDs, want three at least", kept)
	}
}

// TestTheChartsSchema checks that Helm rejects misspelled values.
func TestTheChartsSchema(t *testing.T) {
	t.Parallel()
	for _, values := range []string{
		"replica=3", "replicas=three", "replicas=0", "image=agent", "imagePullPolicy=Sometimes", "crds.instal=false",
		"config.logg.level=debug", "config.credentialIssuerSpec.impersonationProxy.mode=on",
		"config.credentialIssuerSpec.impersonationProxy.externalEndpiont=proxy.example.com",
	} {
		if out, err := helmTemplate(t, agentNamespace, "--set="+values); err == nil {
			t.Errorf("%s was taken: %.100s", values, out)
		}
	}
	for _, values := range []string{
		"config.credentialIssuerSpec=null", "config.labels.team=blue",
		"config.credentialIssuerSpec.impersonationProxy.externalEndpoint=proxy.example.com",
		"config.credentialIssuerSpec.impersonationProxy.tls.certificateAuthorityDataSource.kind=ConfigMap," +
			"config.credentialIssuerSpec.impersonationProxy.tls.certificateAuthorityDataSource.name=ca," +
			"config.credentialIssuerSpec.impersonationProxy.tls.certificateAuthorityDataSource.key=ca.crt",
		"config.kubeCertAgent.image=i,config.discovery.url=null,config.names.agentServiceAccount=x", // Pinniped's
	} {
		if out, err := helmTemplate(t, agentNamespace, "--set="+values); err != nil {
			t.Errorf("%s: %v: %s", values, err, out)
		}
	}
	// The schema of config has the agent's keys.
	content := must.Get(os.ReadFile("helm/values.schema.json"))(t)
	var chart map[string]any
	must.Do(t, yaml.Unmarshal(content, &chart))
	testInitialSpec(t, chart)
	var agentKeys []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[agent.Config]()) {
		key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		agentKeys = append(agentKeys, key)
	}
	slices.Sort(agentKeys)
	chartKeys, _ := at(chart, "properties", "config", "properties").(map[string]any)
	if diff := cmp.Diff(agentKeys, slices.Sorted(maps.Keys(chartKeys))); diff != "" {
		t.Errorf("the keys of the configuration in values.schema.json (-agent +chart):\n%s", diff)
	}
}

// testInitialSpec compares config.credentialIssuerSpec in the schema with the CRD. With UPDATE_GOLDEN, it updates the
// schema.
func testInitialSpec(t *testing.T, chart map[string]any) {
	t.Helper()
	content := must.Get(os.ReadFile("crds/config.concierge.pinniped.dev_credentialissuers.yaml"))(t)
	var crd map[string]any
	must.Do(t, yaml.Unmarshal(content, &crd))
	versions, _ := at(crd, "spec", "versions").([]any)
	want, ok := strict(at(versions[0], "schema", "openAPIV3Schema", "properties", "spec")).(map[string]any)
	keys, _ := at(chart, "properties", "config", "properties").(map[string]any)
	if !ok || keys == nil {
		t.Fatal("the CRD or the schema has no spec")
	}
	want["type"] = []any{"object", "null"} // null: the agent creates no CredentialIssuer
	diff := cmp.Diff(want, keys["credentialIssuerSpec"])
	if diff == "" {
		return
	}
	if os.Getenv("UPDATE_GOLDEN") == "" {
		t.Fatalf("credentialIssuerSpec in values.schema.json (-CRD +chart), hack/generate.sh updates it:\n%s", diff)
	}
	keys["credentialIssuerSpec"] = want
	var updated bytes.Buffer
	encoder := json.NewEncoder(&updated)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	must.Do(t, encoder.Encode(chart))
	must.Do(t, os.WriteFile("helm/values.schema.json", updated.Bytes(), 0o600))
}

// strict returns a schema of a CRD as JSON Schema that allows no unknown fields.
func strict(schema any) any {
	switch schema := schema.(type) {
	case []any:
		for i := range schema {
			schema[i] = strict(schema[i])
		}
	case map[string]any:
		for key, value := range schema {
			if strings.HasPrefix(key, "x-kubernetes-") {
				delete(schema, key)
				continue
			}
			schema[key] = strict(value)
		}
		if _, object := schema["properties"].(map[string]any); object && schema["type"] == "object" {
			schema["additionalProperties"] = false
		}
	}
	return schema
}
