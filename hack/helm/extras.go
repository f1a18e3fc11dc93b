package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// extra is a folder of deploy that may be added to an installation, and the switch of the chart that adds it.
type extra struct {
	folder    string
	component bool // of kustomize: it has objects of its own, and settings for the agent
	value     string
	comment   string
}

func extras() []extra {
	return []extra{
		{
			folder:    "clustersigner",
			component: true,
			value:     "clusterSigner.enabled",
			comment: "Let users log in at the API server itself, with certificates of the cluster's own signer. The rights for that are as " +
				"good as an administrator's: read docs/howto/cluster-signer.md first.",
		},
		{
			folder: "serviceaccounttokens",
			value:  "serviceAccountTokens.enabled",
			comment: "Let the agent manage a service account for each user, for clusters without a load balancer. It also takes " +
				"serviceAccountTokens.mode: enabled in credentialIssuer.spec: docs/howto/no-load-balancer.md.",
		},
		{
			folder:    "monitoring",
			component: true,
			value:     "monitoring.enabled",
			comment:   "Serve metrics to Prometheus, on all addresses of the pods: docs/reference/metrics.md.",
		},
		{
			folder:    "prometheusoperator",
			component: true,
			value:     "monitoring.prometheusOperator",
			comment:   "Tell the Prometheus operator of them, by a ServiceMonitor, and of the alerts, by a PrometheusRule. Its CRDs must be there.",
		},
	}
}

// objects are those that the folder adds, without its patches.
func (e extra) objects(deploy string) ([]map[string]any, error) {
	folder := filepath.Join(deploy, e.folder)
	if !e.component {
		return render(folder)
	}
	var kustomization struct{ Resources []string }
	if err := readYAML(filepath.Join(folder, "kustomization.yaml"), &kustomization); err != nil {
		return nil, err
	}
	var objects []map[string]any
	for _, file := range kustomization.Resources {
		content, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			return nil, err
		}
		for document := range bytes.SplitSeq(content, []byte("\n---\n")) {
			var object map[string]any
			if err := yaml.UnmarshalStrict(document, &object); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if file == settingsFile {
				continue
			}
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// settingsFile is what a component adds to the agent's configuration.
const settingsFile = "config.yaml"

// extendedConfig is a template's expression for the agent's configuration with what the components add.
func extendedConfig(deploy string) (string, error) {
	expression := "(deepCopy .Values.config)"
	for _, e := range extras() {
		var object struct{ Data struct{ Settings string } }
		err := readYAML(filepath.Join(deploy, e.folder, settingsFile), &object)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		var settings map[string]any
		if err == nil {
			err = yaml.Unmarshal([]byte(object.Data.Settings), &settings)
		}
		if err != nil {
			return "", err
		}
		expression = fmt.Sprintf("(mergeOverwrite %s (ternary %s dict .Values.%s))", expression, literal(settings), e.value)
	}
	return expression, nil
}

// extended is a template's expression for a list in the agent's container, base, with what the components' patches add.
func extended(deploy, field, base string) (string, error) {
	for _, e := range extras() {
		var patch map[string]any
		err := readYAML(filepath.Join(deploy, e.folder, "deployment.yaml"), &patch)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		container := child(child(child(child(child(patch, "spec"), "template"), "spec"), "containers"), "0")
		if added, ok := child(container, field).([]any); ok {
			base = fmt.Sprintf("(concat %s (ternary %s list .Values.%s))", base, literal(added), e.value)
		}
	}
	return base, nil
}

// literal writes a value as a template does.
func literal(value any) string {
	var all strings.Builder
	switch value := value.(type) {
	case []any:
		all.WriteString("(list")
		for _, element := range value {
			all.WriteString(" " + literal(element))
		}
		all.WriteString(")")
	case map[string]any:
		all.WriteString("(dict")
		for _, key := range slices.Sorted(maps.Keys(value)) {
			fmt.Fprintf(&all, " %q %s", key, literal(value[key]))
		}
		all.WriteString(")")
	case string:
		fmt.Fprintf(&all, "%q", value)
	default:
		fmt.Fprint(&all, value)
	}
	return all.String()
}

func readYAML(path string, into any) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
