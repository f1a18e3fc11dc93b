package concierge_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// schema is the part of a schema that `kubectl explain` reads.
type schema struct {
	Description string             `json:"description"`
	Ref         string             `json:"$ref"`
	AllOf       []schema           `json:"allOf"`
	Properties  map[string]*schema `json:"properties"`
	Items       *schema            `json:"items"`
	Additional  json.RawMessage    `json:"additionalProperties"`
}

// testExplain checks every field of every API of pinniped, as `kubectl explain --recursive` does.
func (a *agent) testExplain(t *testing.T) { //nolint:thelper // a subtest
	for group, kinds := range map[string][]string{
		"config.concierge.pinniped.dev":         {"CredentialIssuer"},
		"authentication.concierge.pinniped.dev": {"WebhookAuthenticator", "JWTAuthenticator"},
		"login.concierge.pinniped.dev":          {"TokenCredentialRequest"},
		"identity.concierge.pinniped.dev":       {"WhoAmIRequest"},
	} {
		var document struct {
			Components struct {
				Schemas map[string]*schema `json:"schemas"`
			} `json:"components"`
		}
		testkit.Eventually(t, time.Minute, func() error {
			code, response, err := send(
				t.Context(), a.cluster.AdminConfig(), http.MethodGet, "/openapi/v3/apis/"+group+"/v1alpha1", "")
			if err != nil || code != http.StatusOK {
				return fmt.Errorf("status code %d: %w", code, err)
			}
			return json.Unmarshal([]byte(response), &document)
		})
		for _, kind := range kinds {
			fields := 0
			var walk func(path string, s *schema)
			walk = func(path string, s *schema) {
				for _, ref := range append([]schema{*s}, s.AllOf...) {
					name, ok := strings.CutPrefix(ref.Ref, "#/components/schemas/")
					if ok && strings.Contains(name, "pinniped") {
						walk(path, document.Components.Schemas[name])
					}
				}
				if s.Items != nil {
					walk(path, s.Items)
				}
				for name, field := range s.Properties {
					fields++
					if strings.TrimSpace(field.Description) == "" {
						t.Errorf("%s%s.%s has no description", kind, path, name)
					}
					walk(path+"."+name, field)
				}
			}
			found := false
			for name, s := range document.Components.Schemas {
				if strings.HasSuffix(name, "."+kind) {
					found = true
					if s.Description == "" {
						t.Errorf("%s has no description", kind)
					}
					walk("", s)
				}
			}
			if !found || fields < 5 {
				t.Errorf("%s: found %t, with %d fields", kind, found, fields)
			}
		}
	}
}

// testCategories checks the results of `kubectl get pinniped` and `kubectl get pinniped-authenticators`.
func (a *agent) testCategories(t *testing.T) { //nolint:thelper // a subtest
	client := must.Get(kubernetes.NewForConfig(a.cluster.AdminConfig()))(t)
	found := map[string][]string{}
	testkit.Eventually(t, time.Minute, func() error {
		_, lists, err := client.Discovery().ServerGroupsAndResources()
		if err != nil {
			return err
		}
		clear(found)
		for _, list := range lists {
			for _, resource := range list.APIResources {
				for _, category := range resource.Categories {
					if strings.HasPrefix(category, "pinniped") {
						found[category] = append(found[category], resource.Name)
					}
				}
			}
		}
		for _, names := range found {
			slices.Sort(names)
		}
		return nil
	})
	authenticators := []string{"jwtauthenticators", "webhookauthenticators"}
	want := map[string][]string{
		"pinniped": {
			"credentialissuers", "jwtauthenticators", "tokencredentialrequests", "webhookauthenticators", "whoamirequests",
		},
		"pinniped-authenticator": authenticators, "pinniped-authenticators": authenticators,
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
