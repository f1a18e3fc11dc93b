package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Ref names an object of any kind.
type Ref struct {
	Resource  schema.GroupVersionResource
	Namespace string // empty if cluster-scoped
	Name      string
}

// acceptMetadata requests only metadata, so that no key of a Secret is sent. Servers without support send full objects.
const acceptMetadata = "application/json;as=%s;g=meta.k8s.io;v=v1,application/json"

// Metadata returns the metadata of an object, or ErrNotFound, also if the cluster does not serve its kind.
func (c *Client) Metadata(ctx context.Context, ref Ref) (*metav1.ObjectMeta, error) {
	var object metav1.PartialObjectMetadata
	err := c.read(ctx, "get", ref, fmt.Sprintf(acceptMetadata, "PartialObjectMetadata"), "", &object)
	return &object.ObjectMeta, err
}

// ListMetadata returns the metadata of the objects of a kind in a namespace, with a label if it is not empty.
func (c *Client) ListMetadata(
	ctx context.Context,
	resource schema.GroupVersionResource,
	namespace, label string,
) ([]metav1.ObjectMeta, error) {
	var list metav1.PartialObjectMetadataList
	accept := fmt.Sprintf(acceptMetadata, "PartialObjectMetadataList")
	if err := c.read(ctx, "list", Ref{Resource: resource, Namespace: namespace}, accept, label, &list); err != nil {
		return nil, err
	}
	all := make([]metav1.ObjectMeta, 0, len(list.Items))
	for _, item := range list.Items {
		all = append(all, item.ObjectMeta)
	}
	return all, nil
}

// Object decodes an object of any kind into into, a struct with the fields that the caller needs.
func (c *Client) Object(ctx context.Context, ref Ref, into any) error {
	return c.read(ctx, "get", ref, "application/json", "", into)
}

func (c *Client) read(ctx context.Context, verb string, ref Ref, accept, label string, into any) error {
	op := operation{verb: verb, resource: ref.Resource, namespace: ref.Namespace, name: ref.Name}
	where := path.Join("/apis", ref.Resource.Group, ref.Resource.Version)
	if ref.Resource.Group == "" {
		where = path.Join("/api", ref.Resource.Version)
	}
	if ref.Namespace != "" {
		where = path.Join(where, "namespaces", ref.Namespace)
	}
	request := c.rest[corev1.SchemeGroupVersion].Get().
		AbsPath(path.Join(where, ref.Resource.Resource, ref.Name)).
		SetHeader("Accept", accept)
	if label != "" {
		request.Param("labelSelector", label)
	}
	return c.decode(ctx, op, request, fmt.Sprintf("%s %q", ref.Resource.GroupResource(), ref.Name), into)
}

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
