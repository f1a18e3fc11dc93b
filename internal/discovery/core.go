package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Secret returns a Secret, or ErrNotFound.
func (c *Client) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	op := coreOperation("get", "secrets", namespace, name)
	return decoded(ctx, c, op, c.request(op), &corev1.Secret{})
}

// Service returns a Service, or ErrNotFound.
func (c *Client) Service(ctx context.Context, namespace, name string) (*corev1.Service, error) {
	op := coreOperation("get", "services", namespace, name)
	return decoded(ctx, c, op, c.request(op), &corev1.Service{})
}

// ConfigMap returns a ConfigMap, or ErrNotFound.
func (c *Client) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	op := coreOperation("get", "configmaps", namespace, name)
	return decoded(ctx, c, op, c.request(op), &corev1.ConfigMap{})
}

// ApplySecret creates or updates a Secret by server-side apply and returns the result; object has exactly the fields
// that the field manager wants to own. See ApplyCredentialIssuer. Errors contain none of the data.
func (c *Client) ApplySecret(
	ctx context.Context,
	namespace, name string,
	object any,
	opts ApplyOptions,
) (*corev1.Secret, error) {
	return applyCore(ctx, c, "Secret", coreOperation("patch", "secrets", namespace, name), object, opts, &corev1.Secret{})
}

// ApplyConfigMap is ApplySecret for a ConfigMap.
func (c *Client) ApplyConfigMap(
	ctx context.Context,
	namespace, name string,
	object any,
	opts ApplyOptions,
) (*corev1.ConfigMap, error) {
	op := coreOperation("patch", "configmaps", namespace, name)
	return applyCore(ctx, c, "ConfigMap", op, object, opts, &corev1.ConfigMap{})
}

func applyCore[T any, O interface {
	*T
	runtime.Object
}](ctx context.Context, c *Client, kind string, op operation, object any, opts ApplyOptions, into O) (O, error) {
	body, err := applyBody(object, corev1.SchemeGroupVersion.WithKind(kind), op.name)
	if err != nil {
		return nil, err
	}
	return decoded(ctx, c, op, c.patch(op, types.ApplyYAMLPatchType, body, opts), into)
}

// DeleteSecret deletes exactly the given version of a Secret. It returns ErrConflict if the Secret has changed since.
func (c *Client) DeleteSecret(ctx context.Context, secret *corev1.Secret) error {
	op := coreOperation("delete", "secrets", secret.Namespace, secret.Name)
	return c.remove(ctx, op, secret.UID, secret.ResourceVersion)
}

// remove deletes exactly the given version of an object.
func (c *Client) remove(ctx context.Context, op operation, uid types.UID, version string, dryRun ...string) error {
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		DryRun:        dryRun,
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
	op := coreOperation("list", "secrets", namespace, "")
	request := c.request(op).
		Param("fieldSelector", "type="+string(kind)).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
	var list metav1.PartialObjectMetadataList
	if err := c.decode(ctx, op, request, "the list of Secrets", &list); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

var coordination = schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1"}

// ReplicaLabel is the label of the Leases that the agent's replicas renew as heartbeats.
const ReplicaLabel = "credentialissuer.pinniped.dev/replica-of"

// ReplicaLease is the heartbeat of one replica.
type ReplicaLease struct {
	// Renewed is when it was last renewed, and Lasts how long that is valid.
	Renewed time.Time
	Lasts   time.Duration
}

// Lives reports whether the Lease is valid at time now.
func (l ReplicaLease) Lives(now time.Time) bool { return now.Before(l.Renewed.Add(l.Lasts)) }

// ReplicaLeases returns the Leases of the agent's replicas in a namespace.
func (c *Client) ReplicaLeases(ctx context.Context, namespace string) ([]ReplicaLease, error) {
	op := operation{verb: "list", resource: coordination.WithResource("leases"), namespace: namespace}
	var list struct {
		Items []struct {
			Spec struct {
				LeaseDurationSeconds int
				RenewTime            metav1.MicroTime
			}
		}
	}
	request := c.request(op).Param("labelSelector", ReplicaLabel)
	if err := c.decode(ctx, op, request, "the Leases of the agent's replicas", &list); err != nil {
		return nil, err
	}
	leases := make([]ReplicaLease, 0, len(list.Items))
	for _, item := range list.Items {
		leases = append(leases, ReplicaLease{
			Renewed: item.Spec.RenewTime.Time, Lasts: time.Duration(item.Spec.LeaseDurationSeconds) * time.Second,
		})
	}
	return leases, nil
}
