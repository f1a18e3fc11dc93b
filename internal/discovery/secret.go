package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// ApplySecret creates or updates a Secret by server-side apply and returns the result; object has exactly the fields
// that the field manager wants to own. See ApplyCredentialIssuer. Errors contain none of the data.
func (c *Client) ApplySecret(
	ctx context.Context,
	namespace, name string,
	object any,
	opts ApplyOptions,
) (*corev1.Secret, error) {
	var secret corev1.Secret
	err := c.applyCore(ctx, "Secret", secretOperation("patch", namespace, name), object, opts, &secret)
	if err != nil {
		return nil, err
	}
	return &secret, nil
}

// ApplyConfigMap is ApplySecret for a ConfigMap.
func (c *Client) ApplyConfigMap(
	ctx context.Context,
	namespace, name string,
	object any,
	opts ApplyOptions,
) (*corev1.ConfigMap, error) {
	op := operation{
		verb: "patch", resource: corev1.SchemeGroupVersion.WithResource("configmaps"), namespace: namespace, name: name,
	}
	var configMap corev1.ConfigMap
	if err := c.applyCore(ctx, "ConfigMap", op, object, opts, &configMap); err != nil {
		return nil, err
	}
	return &configMap, nil
}

func (c *Client) applyCore(ctx context.Context, kind string, op operation, object any, opts ApplyOptions,
	into runtime.Object,
) error {
	body, err := applyBody(object, corev1.SchemeGroupVersion.WithKind(kind), op.name)
	if err != nil {
		return err
	}
	request := c.request(op).
		Param("fieldManager", opts.FieldManager).
		SetHeader("Content-Type", string(types.ApplyYAMLPatchType)).
		Body(body)
	if opts.Force {
		request.Param("force", "true")
	}
	if opts.DryRun {
		request.Param("dryRun", metav1.DryRunAll)
	}
	if err := request.Do(ctx).Into(into); err != nil {
		return c.explain(ctx, op, err)
	}
	return nil
}

// DeleteSecret deletes exactly the given version of a Secret. It returns ErrConflict if the Secret has changed since.
func (c *Client) DeleteSecret(ctx context.Context, secret *corev1.Secret) error {
	op := secretOperation("delete", secret.Namespace, secret.Name)
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion},
	})
	if err != nil {
		return fmt.Errorf("encoding the preconditions: %w", err)
	}
	if err := c.request(op).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error(); err != nil {
		return c.explain(ctx, op, err)
	}
	return nil
}

// SecretNames returns the names of the Secrets of one type in a namespace. It does not request their data.
func (c *Client) SecretNames(ctx context.Context, namespace string, kind corev1.SecretType) ([]string, error) {
	op := secretOperation("list", namespace, "")
	raw, err := c.request(op).
		Param("fieldSelector", "type="+string(kind)).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").
		Do(ctx).Raw()
	if err != nil {
		return nil, c.explain(ctx, op, err)
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("decoding the list of Secrets: %w", err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

func secretOperation(verb, namespace, name string) operation {
	return operation{
		verb:      verb,
		resource:  corev1.SchemeGroupVersion.WithResource("secrets"),
		namespace: namespace,
		name:      name,
	}
}

// method returns the HTTP method of a verb.
func method(verb string) string {
	switch verb {
	case "patch":
		return http.MethodPatch
	case "delete":
		return http.MethodDelete
	case "create":
		return http.MethodPost
	default:
		return http.MethodGet
	}
}
