package openapi

import (
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// TestDefinitionsAreComplete checks that every referenced definition exists. Otherwise the server does not start.
func TestDefinitionsAreComplete(t *testing.T) {
	t.Parallel()
	referred := map[string]bool{}
	definitions := Definitions(func(name string) spec.Ref {
		referred[name] = true
		return spec.MustCreateRef("#/" + name)
	})
	for name, definition := range definitions {
		for _, dependency := range definition.Dependencies {
			if _, ok := definitions[dependency]; !ok {
				t.Errorf("%s depends on %s, which is not defined", name, dependency)
			}
		}
	}
	for name := range referred {
		if _, ok := definitions[name]; !ok {
			t.Errorf("%s is referred to, and not defined", name)
		}
	}
}
