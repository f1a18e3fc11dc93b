package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// openAPISchema is the part of an OpenAPI schema that TLSFields reads.
type openAPISchema struct {
	Properties map[string]*openAPISchema `json:"properties"`
	Kinds      []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
}

// TLSFields returns the field names of a CredentialIssuer's spec.impersonationProxy.tls in this cluster. They identify
// the agent: Pinniped's has no verification, and old ones have no tls, which gives an empty list. It returns an error
// if the API server does not publish the schema, or not to this user.
func (c *Client) TLSFields(ctx context.Context) ([]string, error) {
	group := c.groups.Config
	raw, err := c.rest[group].Get().AbsPath("/openapi/v3/apis/" + group.String()).Do(ctx).Raw()
	if err != nil {
		op := operation{verb: "get", resource: group.WithResource("openapi")}
		return nil, fmt.Errorf("reading the schema of API %s: %w", group, c.explain(ctx, op, err))
	}
	var document struct {
		Components struct {
			Schemas map[string]*openAPISchema `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, fmt.Errorf("decoding the schema of API %s: %w", group, err)
	}
	for _, one := range document.Components.Schemas {
		if !slices.Contains(one.Kinds, group.WithKind("CredentialIssuer")) {
			continue
		}
		for _, part := range []string{"spec", "impersonationProxy", "tls"} {
			if one = one.Properties[part]; one == nil {
				return []string{}, nil
			}
		}
		return slices.Sorted(maps.Keys(one.Properties)), nil
	}
	return nil, fmt.Errorf("the schema of API %s has no CredentialIssuer", group)
}
