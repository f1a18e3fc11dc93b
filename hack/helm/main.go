// Command helm writes the Helm chart, from the objects that kustomize makes of deploy/concierge: helm SOURCE CHART
//
// The chart has a template for each object, and for those of the folders beside SOURCE that extras.go lists. What may be set is listed in values.go, with its default taken from the
// object, so that there is one source for both ways to install.
package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

//go:embed NOTES.txt
var notes []byte

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: helm SOURCE CHART"))
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

// render returns the objects of a kustomization.
func render(folder string) ([]map[string]any, error) {
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, err
	}
	var objects []map[string]any
	for _, resource := range made.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			return nil, err
		}
		var object map[string]any
		if err := yaml.Unmarshal(text, &object); err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// write replaces the chart's folder.
func write(source, chart string) error {
	objects, err := render(source)
	if err != nil {
		return fmt.Errorf("rendering %q: %w", source, err)
	}
	if err := os.RemoveAll(chart); err != nil {
		return err
	}
	files := map[string][]byte{"Chart.yaml": []byte(chartYAML)}
	values, schema := map[string]any{}, objectSchema()
	conditions := map[string]string{} // by kind and name
	for _, extra := range extras() {
		more, err := extra.objects(filepath.Dir(source))
		if err != nil {
			return fmt.Errorf("rendering %q: %w", extra.folder, err)
		}
		for _, object := range more {
			conditions[kindOf(object)+" "+nameOf(object)] = ".Values." + extra.value
		}
		objects = append(objects, more...)
	}
	config, err := extendedConfig(filepath.Dir(source))
	if err != nil {
		return err
	}
	for _, object := range objects {
		kind, name := kindOf(object), nameOf(object)
		condition, isExtra := conditions[kind+" "+name]
		if !isExtra {
			condition = conditionOf(kind, name)
		}
		t := template{object: object, condition: condition, config: config}
		for _, value := range valuesOf(kind, name) {
			if value.name == "config" {
				value.expression = config
			}
			found := t.take(value)
			if found == nil && value.fallback == nil {
				return fmt.Errorf("%s %s has no %s", kind, name, value.at)
			}
			set(values, schema, value, found)
		}
		if kind == "Deployment" {
			if err := t.extendPorts(filepath.Dir(source)); err != nil {
				return err
			}
		}
		text, err := t.text()
		if err != nil {
			return fmt.Errorf("%s %s: %w", kind, name, err)
		}
		file := strings.ToLower(kind) + "-" + strings.NewReplacer(":", "-", "/", "-").Replace(name) + ".yaml"
		if kind == "CustomResourceDefinition" {
			file = "crd-" + name + ".yaml"
		}
		files[filepath.Join("templates", file)] = text
	}
	for _, value := range switches() {
		set(values, schema, value, value.fallback)
	}
	if err := describeConfig(
		schema,
		filepath.Join(filepath.Dir(source), "../docs/reference/agent.schema.json"),
	); err != nil {
		return fmt.Errorf("describing the agent's configuration: %w", err)
	}
	files[filepath.Join("templates", "NOTES.txt")] = notes
	if files["values.yaml"], err = valuesYAML(values); err != nil {
		return err
	}
	if files["values.schema.json"], err = schemaJSON(schema); err != nil {
		return err
	}
	for file, content := range files {
		path := filepath.Join(chart, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func kindOf(object map[string]any) string { return fmt.Sprint(object["kind"]) }

func nameOf(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	return fmt.Sprint(metadata["name"])
}

// template is an object that becomes a template: placeholders stand in it where values will.
type template struct {
	object    map[string]any
	condition string   // of rendering it; empty is always
	config    string   // the expression for the agent's configuration
	blocks    []string // what replaces placeholder number i
}

var (
	// A placeholder that is all of a line's value, and one in it.
	blockPlaceholder  = regexp.MustCompile(`(?m)^( *)(- )?([^\n]*:) BLOCK-(\d+)-$`)
	inlinePlaceholder = regexp.MustCompile(`'?INLINE-(\d+)-'?`)
)

// text is the template's file.
func (t *template) text() ([]byte, error) {
	t.namespaces(t.object)
	t.annotate()
	encoded, err := yaml.Marshal(t.object)
	if err != nil {
		return nil, err
	}
	encoded = bytes.ReplaceAll(encoded, []byte("{{"), []byte(`{{ "{{" }}`)) // of Prometheus, in alerts
	text := blockPlaceholder.ReplaceAllStringFunc(string(encoded), func(line string) string {
		m := blockPlaceholder.FindStringSubmatch(line)
		indent := len(m[1]) + len(m[2]) + 2
		return m[1] + m[2] + m[3] + fmt.Sprintf(t.blocks[atoi(m[4])], indent)
	})
	text = inlinePlaceholder.ReplaceAllStringFunc(text, func(placeholder string) string {
		return t.blocks[atoi(inlinePlaceholder.FindStringSubmatch(placeholder)[1])]
	})
	if t.condition != "" {
		text = "{{- if " + t.condition + " }}\n" + text + "{{- end }}\n"
	}
	return []byte("# Made by hack/helm from deploy.\n" + text), nil
}

// extendPorts adds the ports of the switches to those of the container.
func (t *template) extendPorts(deploy string) error {
	spec := child(child(child(t.object, "spec"), "template"), "spec")
	container, ok := child(child(spec, "containers"), "0").(map[string]any)
	if !ok {
		return fmt.Errorf("the Deployment has no container")
	}
	ports, err := extended(deploy, "ports", literal(container["ports"]))
	container["ports"] = t.placeholder("BLOCK", "{{ toYaml "+ports+" | nindent %d }}")
	return err
}

// annotate adds what only Helm needs: it keeps the kinds when the release is uninstalled, and with them the configuration,
// which is in the CredentialIssuer. It replaces the pods when their configuration has changed.
func (t *template) annotate() {
	object, add := t.object, map[string]any{"helm.sh/resource-policy": "keep"}
	switch kindOf(object) {
	case "CustomResourceDefinition":
	case "Deployment":
		object, _ = child(child(object, "spec"), "template").(map[string]any)
		add = map[string]any{"checksum/config": t.placeholder("INLINE", "{{ toYaml "+t.config+" | sha256sum }}")}
	default:
		return
	}
	metadata, _ := object["metadata"].(map[string]any)
	annotations, ok := metadata["annotations"].(map[string]any)
	if !ok {
		annotations = map[string]any{}
		metadata["annotations"] = annotations
	}
	maps.Copy(annotations, add)
}

func (t *template) placeholder(kind, replacement string) string {
	t.blocks = append(t.blocks, replacement)
	return fmt.Sprintf("%s-%d-", kind, len(t.blocks)-1)
}

// namespaces puts the release's namespace in place of ours: in every field called namespace, as the name of the
// Namespace, and in the names of users that are service accounts.
func (t *template) namespaces(node any) {
	const ours, user = "pinniped-concierge", "system:serviceaccount:"
	inline := func() string { return t.placeholder("INLINE", "{{ .Release.Namespace }}") }
	switch node := node.(type) {
	case map[string]any:
		for key, child := range node {
			if key == "namespace" && child == ours {
				node[key] = inline()
				continue
			}
			if text, ok := child.(string); ok && strings.Contains(text, user+ours+":") {
				node[key] = strings.ReplaceAll(text, user+ours+":", user+inline()+":")
			}
			t.namespaces(child)
		}
		if kindOf(node) == "Namespace" && nameOf(node) == ours {
			metadata, _ := node["metadata"].(map[string]any)
			metadata["name"] = inline()
		}
	case []any:
		for _, child := range node {
			t.namespaces(child)
		}
	}
}
