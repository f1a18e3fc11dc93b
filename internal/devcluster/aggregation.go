package devcluster

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// PointServiceAt points a Service at a port of this machine, so that the API server reaches an aggregated API or a
// webhook in a local process: the Service gets the type ExternalName with localhost. It is created if it does not
// exist; its namespace must exist.
//
// The API server takes the port from the object that refers to the Service, not from the Service: see
// PointAPIServiceAt. The serving certificate must be valid for "<name>.<namespace>.svc".
func (c *Cluster) PointServiceAt(ctx context.Context, namespace, name string, port int) error {
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "Service",
		"metadata":   map[string]any{"namespace": namespace, "name": name},
		"spec": map[string]any{
			"type":         "ExternalName",
			"externalName": "localhost",
			"ports":        []any{map[string]any{"name": "https", "port": int64(port), "protocol": "TCP"}},
		},
	}}
	services := c.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).Namespace(namespace)
	// A merge patch replaces the whole list of ports. A server-side apply would keep ports of other field managers.
	patch, err := json.Marshal(map[string]any{"spec": service.Object["spec"]})
	if err != nil {
		return err
	}
	_, err = services.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) {
		_, err = services.Create(ctx, service, metav1.CreateOptions{FieldManager: fieldManager})
	}
	if err != nil {
		return fmt.Errorf("pointing Service %q at port %d: %w", namespace+"/"+name, port, err)
	}
	return nil
}

// PointAPIServiceAt changes only the port of an existing APIService. Together with PointServiceAt, it points it at a
// process on this machine.
func (c *Cluster) PointAPIServiceAt(ctx context.Context, name string, port int) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"service": map[string]any{"port": port}}})
	if err != nil {
		return err
	}
	services := c.dynamic.Resource(schema.GroupVersionResource{
		Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices",
	})
	_, err = services.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("pointing APIService %q at port %d: %w", name, port, err)
	}
	return nil
}
