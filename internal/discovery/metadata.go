package discovery

import (
	"context"
	"fmt"
	"path"

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
