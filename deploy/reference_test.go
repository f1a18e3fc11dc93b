package deploy

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestFieldsOfAuthenticators looks up every field of the authenticators' CRDs in their reference.
func TestFieldsOfAuthenticators(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/reference/authenticators.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"jwtauthenticators", "webhookauthenticators"} {
		content, err := os.ReadFile("crds/authentication.concierge.pinniped.dev_" + kind + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Spec struct {
				Versions []struct {
					Schema struct{ OpenAPIV3Schema map[string]any }
				}
			}
		}
		if err := yaml.Unmarshal(content, &crd); err != nil {
			t.Fatal(err)
		}
		var look func(path string, schema any)
		look = func(path string, schema any) {
			if items := at(schema, "items"); items != nil {
				path, schema = path+"[]", items
			}
			properties, _ := at(schema, "properties").(map[string]any)
			for name, property := range properties {
				field := strings.TrimPrefix(path+"."+name, ".")
				if !strings.Contains(string(page), "| `"+field+"` |") {
					t.Errorf("authenticators.md has no field %s of %s", field, kind)
				}
				look(field, property)
			}
		}
		look("", at(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, "properties", "spec"))
	}
}
