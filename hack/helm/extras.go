package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// extra is a folder of deploy that may be added to an installation, and the switch of the chart that adds it.
type extra struct {
	folder    string
	component bool // of kustomize: it has objects of its own, and a patch with environment variables of the agent
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
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// environment is a template's expression for the variables that the components' patches add to the agent.
func environment(deploy string) (string, error) {
	added := ".Values.env"
	for _, e := range extras() {
		if !e.component {
			continue
		}
		var patch map[string]any
		if err := readYAML(filepath.Join(deploy, e.folder, "deployment.yaml"), &patch); err != nil {
			return "", err
		}
		var all strings.Builder
		container := child(child(child(child(child(patch, "spec"), "template"), "spec"), "containers"), "0")
		variables, _ := child(container, "env").([]any)
		for _, variable := range variables {
			fmt.Fprintf(&all, " (dict \"name\" %q \"value\" %q)", child(variable, "name"), child(variable, "value"))
		}
		if all.Len() == 0 {
			return "", fmt.Errorf("the patch of %q adds no variable", e.folder)
		}
		added = fmt.Sprintf("(concat %s (ternary (list%s) list .Values.%s))", added, all.String(), e.value)
	}
	return added, nil
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
