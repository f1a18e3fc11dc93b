package rights_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rights"
)

// TestShipped compares the Roles in deploy/ with what the commands need.
func TestShipped(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{"viewer.yaml": rights.Viewer(), "operator.yaml": rights.Operator()} {
		path := "../../../../deploy/iptlsroles/" + file
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s is not what the commands need; make update-golden writes it (-want +got):\n%s", file, diff)
		}
	}
}

// TestRestricted shows that no shipped Role reads more than the Secrets that it names: those of the agent's namespace
// hold the key that signs users' client certificates.
func TestRestricted(t *testing.T) {
	t.Parallel()
	for name, manifest := range map[string]string{"viewer": rights.Viewer(), "operator": rights.Operator()} {
		for document := range strings.SplitSeq(manifest, "---\n") {
			var role rbacv1.ClusterRole // a Role has the same fields
			if err := yaml.UnmarshalStrict([]byte(document), &role); err != nil {
				t.Fatal(err)
			}
			for _, rule := range role.Rules {
				secrets := slices.Contains(rule.Resources, "secrets")
				if secrets && name == "viewer" {
					t.Errorf("the viewer may %v Secrets", rule.Verbs)
				}
				// RBAC cannot restrict these to names in a useful way.
				nameless := !secrets && slices.Equal(rule.Verbs, []string{"list"}) ||
					secrets && slices.Equal(rule.Verbs, []string{"create"})
				if len(rule.ResourceNames) == 0 && !nameless {
					t.Errorf("the %s may %v all %v", name, rule.Verbs, rule.Resources)
				}
			}
		}
	}
}
