package delegation

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// Grant is the permission to use a Secret from another namespace.
type Grant struct {
	Secret types.NamespacedName
	// Namespace and ServiceAccount are the agent's.
	Namespace, ServiceAccount string
}

// maxName is the maximum length of an object's name.
const maxName = 253

// Name returns the name of all objects of a grant. It is unique for the Secret and the namespace.
func (g Grant) Name() string {
	name := g.Secret.Name + "-to-" + g.Namespace
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	suffix := "-" + hex.EncodeToString(sum[:])[:16]
	return name[:maxName-len(suffix)] + suffix
}

// Labels returns the labels of all objects of a grant.
func Labels() map[string]string { return map[string]string{"app.kubernetes.io/managed-by": "pinniped"} }

// Objects returns what the owner of the Secret has to create, in this order: a Role that permits reading this Secret,
// its RoleBinding to the agent, and the delegation, after which the agent starts to use it.
func (g Grant) Objects() []map[string]any {
	metadata := func() map[string]any {
		labels := map[string]any{}
		for key, value := range Labels() {
			labels[key] = value
		}
		return map[string]any{"name": g.Name(), "namespace": g.Secret.Namespace, "labels": labels}
	}
	const rbacGroup = "rbac.authorization.k8s.io"
	return []map[string]any{
		{
			"apiVersion": rbacGroup + "/v1", "kind": "Role", "metadata": metadata(),
			"rules": []any{map[string]any{
				"apiGroups": []any{""}, "resources": []any{"secrets"}, "resourceNames": []any{g.Secret.Name},
				"verbs": []any{"get", "list", "watch"}, // so that the agent can watch it
			}},
		},
		{
			"apiVersion": rbacGroup + "/v1", "kind": "RoleBinding", "metadata": metadata(),
			"roleRef":  map[string]any{"apiGroup": rbacGroup, "kind": "Role", "name": g.Name()},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": g.ServiceAccount, "namespace": g.Namespace}},
		},
		{
			"apiVersion": Group + "/" + Version, "kind": Kind, "metadata": metadata(),
			"spec": map[string]any{"delegations": []any{map[string]any{
				"secretName": g.Secret.Name, "targetNamespaces": []any{g.Namespace},
			}}},
		},
	}
}

// YAML returns objects as a stream of YAML documents, for kubectl apply.
func YAML(objects []map[string]any) ([]byte, error) {
	var out bytes.Buffer
	for i, object := range objects {
		text, err := yaml.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("encoding a %v: %w", object["kind"], err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}
