package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	k8syaml "sigs.k8s.io/yaml"
)

const chartYAML = `# Made by hack/helm from deploy.
apiVersion: v2
name: pinniped-concierge
description: Puts a Kubernetes API behind your own certificate, and logs people in to it
type: application
version: 0.0.0-devel
appVersion: latest
home: https://github.com/pinniped-toolkit/pinniped
sources: [https://github.com/pinniped-toolkit/pinniped]
`

// value is something that the chart's user may set.
type value struct {
	name     string // in values.yaml, with dots
	comment  string
	at       string // where it stands in the object, with dots; empty for a switch of the chart
	kind     string // of JSON Schema
	block    bool   // it is written as YAML over several lines
	optional bool   // without it, the field is left out
	text     bool   // YAML in a text field
	fallback any    // default of a field that the object lacks
	// expression is what the template says instead of .Values.name.
	expression string
}

const (
	container = "spec.template.spec.containers.0."
	pod       = "spec.template.spec."
)

// valuesOf lists what may be set in an object.
func valuesOf(kind, name string) []value {
	switch {
	case kind == "Deployment":
		return []value{
			{
				name:    "replicas",
				comment: "How many agents run. Each serves; one of them leads.",
				at:      "spec.replicas",
				kind:    "integer",
			},
			{
				name:    "image",
				comment: "The agent's image, as `make image-push` prints it: with its digest, or with a tag.",
				at:      container + "image",
				kind:    "string",
			},
			{
				name:    "imagePullPolicy",
				comment: "IfNotPresent, Always or Never.",
				at:      container + "imagePullPolicy",
				kind:    "string",
			},
			{
				name:     "imagePullSecrets",
				comment:  "Secrets to pull it with: [{name: registry}].",
				at:       pod + "imagePullSecrets",
				kind:     "array",
				block:    true,
				optional: true,
				fallback: []any{},
			},
			{
				name:    "resources",
				comment: "Of each agent; what they rest on: docs/reference/manifests.md. A CPU limit would throttle TLS handshakes. What clients may hold follows from the memory limit.",
				at:      container + "resources",
				kind:    "object",
				block:   true,
			},
			{
				name:    "env",
				comment: "Environment of the agent. The first two tell it where it runs.",
				at:      container + "env",
				kind:    "array",
				block:   true,
			},
			{
				name:    "tolerations",
				comment: "Taints of nodes that it may run on.",
				at:      pod + "tolerations",
				kind:    "array",
				block:   true,
			},
			{
				name:    "topologySpreadConstraints",
				comment: "Where it runs: by default on different nodes and in different zones, where that is possible.",
				at:      pod + "topologySpreadConstraints",
				kind:    "array",
				block:   true,
			},
			{
				name:     "affinity",
				comment:  "Where else it is to run.",
				at:       pod + "affinity",
				kind:     "object",
				block:    true,
				optional: true,
				fallback: map[string]any{},
			},
			{
				name:     "nodeSelector",
				comment:  "Labels of nodes that it runs on.",
				at:       pod + "nodeSelector",
				kind:     "object",
				block:    true,
				optional: true,
				fallback: map[string]any{},
			},
			{
				name:     "priorityClassName",
				comment:  "PriorityClass of its pods.",
				at:       pod + "priorityClassName",
				kind:     "string",
				optional: true,
				fallback: "",
			},
		}
	case name == "pinniped-concierge-metrics" && kind == "NetworkPolicy":
		return []value{
			{
				name:    "monitoring.namespace",
				comment: "Where Prometheus runs: no other namespace reaches the metrics.",
				at:      "spec.ingress.0.from.0.namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name",
				kind:    "string",
			},
		}
	case kind == "ServiceMonitor", kind == "PrometheusRule":
		return []value{
			{
				name:    "monitoring.labels",
				comment: "Labels of ServiceMonitor and PrometheusRule. Add the one by which your Prometheus selects them, such as release.",
				at:      "metadata.labels",
				kind:    "object",
				block:   true,
			},
		}
	case kind == "ConfigMap":
		return []value{
			{
				name: "config",
				comment: "Configuration of the agent: docs/reference/agent.md. credentialIssuerSpec is how clients get in at first: the agent makes its " +
					"CredentialIssuer with that, once. Later, `pinniped ip-tls` or kubectl change the CredentialIssuer, and Helm leaves it alone. null: you make it.",
				at:    "data.pinniped\\.yaml",
				kind:  "object",
				block: true,
				text:  true,
			},
		}
	}
	return nil
}

// switches are values that decide which objects there are.
func switches() []value {
	all := []value{
		{
			name:     "namespace.create",
			comment:  "Make the namespace, with Pod Security's level restricted. --create-namespace makes one without.",
			kind:     "boolean",
			fallback: false,
		},
		{
			name:     "crds.install",
			comment:  "Install the CRDs. They are kept when the release is uninstalled, and so is the configuration.",
			kind:     "boolean",
			fallback: true,
		},
		{
			name:     "flowControl.enabled",
			comment:  "Give the agent's requests priority levels of their own at the API server.",
			kind:     "boolean",
			fallback: true,
		},
		{
			name:     "networkPolicy.enabled",
			comment:  "Close every port of the pods but those for clients and for the API server.",
			kind:     "boolean",
			fallback: true,
		},
	}
	for _, e := range extras() {
		all = append(all, value{name: e.value, comment: e.comment, kind: "boolean", fallback: false})
	}
	return all
}

// conditionOf says when an object is rendered; empty is always.
func conditionOf(kind, name string) string {
	switch kind {
	case "Namespace":
		return ".Values.namespace.create"
	case "CustomResourceDefinition":
		return ".Values.crds.install"
	case "NetworkPolicy":
		return ".Values.networkPolicy.enabled"
	case "FlowSchema", "PriorityLevelConfiguration":
		return ".Values.flowControl.enabled"
	}
	return ""
}

// take puts a placeholder in a value's place, and returns what stood there.
func (t *template) take(v value) any {
	path := strings.Split(strings.ReplaceAll(v.at, `\.`, "\x00"), ".")
	for i := range path {
		path[i] = strings.ReplaceAll(path[i], "\x00", ".")
	}
	var node any = t.object
	for _, key := range path[:len(path)-1] {
		node = child(node, key)
	}
	last := path[len(path)-1]
	parent, ok := node.(map[string]any)
	if !ok {
		return nil
	}
	found, there := parent[last]
	ref := ".Values." + v.name
	if v.expression != "" {
		ref = v.expression
	}
	switch {
	case v.text:
		var decoded any
		if err := k8syaml.Unmarshal([]byte(fmt.Sprint(found)), &decoded); err != nil {
			return nil
		}
		found = decoded
		parent[last] = t.placeholder("BLOCK", " |{{ toYaml "+ref+" | nindent %d }}")
	case v.optional:
		// The whole field depends on it: with replaces its line.
		parent[last] = t.placeholder("BLOCK", "{{ with "+ref+" }}{{ toYaml . | nindent %d }}{{ else }}"+empty(v)+"{{ end }}")
	case v.block:
		parent[last] = t.placeholder("BLOCK", "{{ toYaml "+ref+" | nindent %d }}")
	case v.kind == "string":
		parent[last] = t.placeholder("INLINE", "{{ "+ref+" | quote }}")
	default:
		parent[last] = t.placeholder("INLINE", "{{ "+ref+" }}")
	}
	if !there {
		return nil
	}
	return found
}

// empty is how an optional field is written that is not set.
func empty(v value) string {
	switch v.kind {
	case "array":
		return " []"
	case "object":
		return " {}"
	}
	return ` ""`
}

func child(node any, key string) any {
	switch node := node.(type) {
	case map[string]any:
		return node[key]
	case []any:
		if i, err := strconv.Atoi(key); err == nil && i < len(node) {
			return node[i]
		}
	}
	return nil
}

// documented is a default with the comment that stands above it in values.yaml.
type documented struct {
	comment string
	value   any
}

// set puts a value's default into the values, and its type into the schema.
func set(values, schema map[string]any, v value, found any) {
	if found == nil {
		found = v.fallback
	}
	path := strings.Split(v.name, ".")
	for _, key := range path[:len(path)-1] {
		if values[key] == nil {
			values[key] = map[string]any{}
		}
		values, _ = values[key].(map[string]any)
		properties, _ := schema["properties"].(map[string]any)
		if properties[key] == nil {
			properties[key] = objectSchema()
		}
		schema, _ = properties[key].(map[string]any)
	}
	last := path[len(path)-1]
	values[last] = documented{comment: v.comment, value: found}
	properties, _ := schema["properties"].(map[string]any)
	property := map[string]any{"type": v.kind, "description": v.comment}
	switch v.name {
	case "replicas":
		property["minimum"] = 1
	case "imagePullPolicy":
		property["enum"] = []string{"IfNotPresent", "Always", "Never"}
	case "image":
		property["pattern"] = "^[^:]+.*[:@][^/]+$" // a tag or a digest
	}
	properties[last] = property
}

func objectSchema() map[string]any {
	return map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
}

// describeConfig puts the schema of the agent's configuration in the place of the value that holds it.
func describeConfig(schema map[string]any, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var config map[string]any
	if err := json.Unmarshal(content, &config); err != nil {
		return err
	}
	delete(config, "$schema")
	properties, _ := schema["properties"].(map[string]any)
	config["description"] = child(properties["config"], "description")
	properties["config"] = config
	return nil
}

func schemaJSON(schema map[string]any) ([]byte, error) {
	schema["$schema"] = "http://json-schema.org/draft-07/schema#"
	properties, _ := schema["properties"].(map[string]any)
	properties["global"] = map[string]any{"type": "object"} // Helm hands it to every chart that is part of another
	encoded, err := json.MarshalIndent(schema, "", "  ")
	return append(encoded, '\n'), err
}

// valuesYAML writes the defaults with their comments, in alphabetical order.
func valuesYAML(values map[string]any) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(`# Made by hack/helm from deploy. The defaults are what kustomize renders.
#
# There is no nameOverride, and the names do not follow the release, because an installation is the whole cluster's: its CRDs, APIServices, cluster roles
# and CredentialIssuer exist once, and documents, alerts and kubeconfigs refer to them. Helm refuses a second release, because the first one owns these
# objects. The namespace is the release's.

`)
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(nodeOf(values)); err != nil {
		return nil, err
	}
	return out.Bytes(), encoder.Close()
}

func nodeOf(values map[string]any) *yaml.Node {
	node := &yaml.Node{Kind: yaml.MappingNode}
	var names []string
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		key, value := &yaml.Node{Kind: yaml.ScalarNode, Value: name}, &yaml.Node{}
		switch v := values[name].(type) {
		case documented:
			key.HeadComment = v.comment
			if err := value.Encode(v.value); err != nil {
				panic(err) // it was decoded from YAML
			}
		case map[string]any:
			value = nodeOf(v)
		}
		node.Content = append(node.Content, key, value)
	}
	return node
}

func atoi(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err) // a regular expression has found digits
	}
	return n
}
