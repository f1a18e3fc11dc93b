package issuedcert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Writer writes the Secrets of one namespace. client-go's SecretInterface implements it.
type Writer interface {
	Create(context.Context, *corev1.Secret, metav1.CreateOptions) (*corev1.Secret, error)
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions,
		subresources ...string) (*corev1.Secret, error)
}

// Target says which Secret to write, and how.
type Target struct {
	Name         types.NamespacedName
	Type         corev1.SecretType // only for creation
	Labels       map[string]string
	FieldManager string
}

// ErrForeign means that another program created a Secret with one of the agent's names.
var ErrForeign = errors.New("the agent did not create it, and leaves it unchanged; rename or delete it")

// Foreign reports whether a Secret has content and nothing that marks it as the agent's: its annotation, the configured
// labels, or a Deployment as owner, which upstream Pinniped sets.
func Foreign(secret *corev1.Secret, labels map[string]string) bool {
	_, written := secret.Annotations[labelKeys]
	if len(secret.Data) == 0 || written ||
		len(WithoutDeployments(secret.OwnerReferences)) < len(secret.OwnerReferences) {
		return false
	}
	for key, value := range labels {
		if secret.Labels[key] != value {
			return true
		}
	}
	return len(labels) == 0
}

// Write replaces the content of a Secret and returns the result. It keeps labels and annotations of others. read is the
// Secret from which data was computed, or nil if it did not exist. If it was created, changed or deleted since, Write
// changes nothing and returns an error for which ChangedMeanwhile is true. It returns ErrForeign for a Secret that is
// not the agent's.
func Write(
	ctx context.Context, w Writer, target Target, data map[string][]byte, read *corev1.Secret,
) (*corev1.Secret, error) {
	if read == nil {
		created, err := w.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: target.Name.Namespace, Name: target.Name.Name, Labels: target.Labels,
				Annotations: map[string]string{labelKeys: keysOf(target.Labels)},
			},
			Type: target.Type, Data: data,
		}, metav1.CreateOptions{FieldManager: target.FieldManager})
		if err != nil {
			return nil, fmt.Errorf("creating Secret %s: %w", target.Name, err)
		}
		return created, nil
	}
	if Foreign(read, target.Labels) {
		return nil, fmt.Errorf("writing Secret %s: %w", target.Name, ErrForeign)
	}
	content := map[string]any{}
	for key := range read.Data {
		content[key] = nil // removed, unless it is in data
	}
	for key, value := range data {
		content[key] = value
	}
	// A patch cannot change the type of the Secret.
	body, err := json.Marshal(map[string]any{"metadata": metadataPatch(target, read), "data": content})
	if err != nil {
		return nil, fmt.Errorf("encoding Secret %s: %w", target.Name, err)
	}
	return patch(ctx, w, target, body)
}

// patch changes a Secret. Server-side apply is unsuitable: it would recreate a deleted Secret, and keep keys that
// Create wrote.
func patch(ctx context.Context, w Writer, target Target, body []byte) (*corev1.Secret, error) {
	patched, err := w.Patch(ctx, target.Name.Name, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: target.FieldManager})
	if apierrors.IsNotFound(err) {
		err = apierrors.NewConflict(corev1.Resource("secrets"), target.Name.Name, errors.New("it was deleted"))
	}
	if err != nil {
		return nil, fmt.Errorf("changing Secret %s: %w", target.Name, err)
	}
	return patched, nil
}

// labelKeys is the annotation that lists the labels that the agent set, so that it can remove those no longer
// configured.
const labelKeys = "credentialissuer.pinniped.dev/label-keys"

// HasMetadata reports whether a Secret has the configured labels, no other label of the agent, and no Deployment as
// owner.
func HasMetadata(secret *corev1.Secret, labels map[string]string) bool {
	change := labelChange(secret, labels)
	kept := WithoutDeployments(secret.OwnerReferences)
	return len(change) == 0 && secret.Annotations[labelKeys] == keysOf(labels) && len(kept) == len(secret.OwnerReferences)
}

// WithoutDeployments removes owners that are Deployments. Upstream Pinniped's agent makes its Deployment the owner of
// what it writes. If that Deployment were deleted after a migration, the garbage collector would delete the CAs that
// all kubeconfigs trust, and the Service with their address.
func WithoutDeployments(owners []metav1.OwnerReference) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(owners), func(owner metav1.OwnerReference) bool {
		return owner.Kind == "Deployment" && strings.HasPrefix(owner.APIVersion, "apps/")
	})
}

// labelChange returns the labels of a merge patch; nil removes one.
func labelChange(secret *corev1.Secret, labels map[string]string) map[string]any {
	change := map[string]any{}
	for key, value := range labels {
		if has, found := secret.Labels[key]; !found || has != value {
			change[key] = value
		}
	}
	for key := range strings.SplitSeq(secret.Annotations[labelKeys], ",") {
		if _, wanted := labels[key]; key != "" && !wanted {
			change[key] = nil
		}
	}
	return change
}

func keysOf(labels map[string]string) string {
	return strings.Join(slices.Sorted(maps.Keys(labels)), ",")
}

// WriteMetadata makes HasMetadata true for a Secret, unless it has changed since it was read: see ChangedMeanwhile.
func WriteMetadata(ctx context.Context, w Writer, target Target, read *corev1.Secret) error {
	body, err := json.Marshal(map[string]any{"metadata": metadataPatch(target, read)})
	if err != nil {
		return fmt.Errorf("encoding the metadata of Secret %s: %w", target.Name, err)
	}
	_, err = patch(ctx, w, target, body)
	return err
}

func metadataPatch(target Target, read *corev1.Secret) map[string]any {
	patch := map[string]any{
		"uid": read.UID, "resourceVersion": read.ResourceVersion,
		"labels":      labelChange(read, target.Labels),
		"annotations": map[string]any{labelKeys: keysOf(target.Labels)},
	}
	if kept := WithoutDeployments(read.OwnerReferences); len(kept) < len(read.OwnerReferences) {
		patch["ownerReferences"] = kept
	}
	return patch
}

// ChangedMeanwhile reports whether a write failed because the Secret has changed since it was read.
func ChangedMeanwhile(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
}
