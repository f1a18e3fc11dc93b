package discovery

import (
	"context"
	"encoding/json"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
)

// API groups of the objects of a delegation, besides our own.
var (
	rbacGroup          = schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	authorizationGroup = schema.GroupVersion{Group: "authorization.k8s.io", Version: "v1"}
)

// grantOperation returns the operation on an object in a delegation.Grant.
func grantOperation(verb string, object map[string]any) (op operation, err error) {
	metadata, _ := object["metadata"].(map[string]any)
	op.verb = verb
	op.namespace, _ = metadata["namespace"].(string)
	op.name, _ = metadata["name"].(string)
	switch object["kind"] {
	case "Role":
		op.resource = rbacGroup.WithResource("roles")
	case "RoleBinding":
		op.resource = rbacGroup.WithResource("rolebindings")
	case delegation.Kind:
		op.resource = delegation.Resource()
	default:
		err = fmt.Errorf("%v is not part of a delegation", object["kind"])
	}
	return op, err
}

// Delegations returns the TLSCertificateDelegations of a namespace, or of all namespaces if it is empty. It returns
// ErrNotFound if the cluster does not serve the kind.
func (c *Client) Delegations(ctx context.Context, namespace string) ([]delegation.Delegation, error) {
	op := operation{verb: "list", resource: delegation.Resource(), namespace: namespace}
	raw, err := c.request(op).Do(ctx).Raw()
	if err != nil {
		return nil, c.explain(ctx, op, err)
	}
	return delegation.ParseList(raw)
}

// MayReadSecret reports whether a service account may list and watch the named Secret. It returns ErrForbidden if the
// caller may not ask that.
func (c *Client) MayReadSecret(ctx context.Context, account, secret types.NamespacedName) (bool, error) {
	for _, verb := range []string{"list", "watch"} {
		allowed, err := c.review(ctx, account, verb, secret)
		if err != nil || !allowed {
			return false, err
		}
	}
	return true, nil
}

// review asks first in the Secret's namespace, where its admin may ask, and then cluster-wide.
func (c *Client) review(
	ctx context.Context,
	account types.NamespacedName,
	verb string,
	secret types.NamespacedName,
) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + account.Namespace + ":" + account.Name,
		Groups: []string{
			"system:serviceaccounts", "system:serviceaccounts:" + account.Namespace, "system:authenticated",
		},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: secret.Namespace, Verb: verb, Version: "v1", Resource: "secrets", Name: secret.Name,
		},
	}
	local := operation{
		verb:      "create",
		resource:  authorizationGroup.WithResource("localsubjectaccessreviews"),
		namespace: secret.Namespace,
	}
	allowed, err := c.createReview(ctx, local, map[string]any{
		"apiVersion": authorizationGroup.String(), "kind": "LocalSubjectAccessReview",
		"metadata": map[string]any{"namespace": secret.Namespace}, "spec": spec,
	})
	if err == nil {
		return allowed, nil
	}
	general := operation{verb: "create", resource: authorizationGroup.WithResource("subjectaccessreviews")}
	return c.createReview(ctx, general, map[string]any{
		"apiVersion": authorizationGroup.String(), "kind": "SubjectAccessReview", "spec": spec,
	})
}

func (c *Client) createReview(ctx context.Context, op operation, review map[string]any) (bool, error) {
	body, err := json.Marshal(review)
	if err != nil {
		return false, fmt.Errorf("encoding a %v: %w", review["kind"], err)
	}
	var answer struct {
		Status authorizationv1.SubjectAccessReviewStatus `json:"status"`
	}
	request := c.request(op).SetHeader("Content-Type", "application/json").Body(body)
	err = c.decode(ctx, op, request, fmt.Sprintf("a %v", review["kind"]), &answer)
	return answer.Status.Allowed && err == nil, err
}

// ApplyGrant applies an object of a delegation.Grant by server-side apply. It returns ErrConflict if another manager
// owns a field with another value and Force is not set, and ErrNotFound if the namespace does not exist.
func (c *Client) ApplyGrant(ctx context.Context, object map[string]any, opts ApplyOptions) error {
	op, err := grantOperation("patch", object)
	if err != nil {
		return err
	}
	body, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encoding the %v: %w", object["kind"], err)
	}
	if err := c.patch(op, types.ApplyYAMLPatchType, body, opts).Do(ctx).Error(); err != nil {
		return c.explain(ctx, op, err)
	}
	return nil
}

// Grant returns the existing object with the name of object, which is in a delegation.Grant, or ErrNotFound.
func (c *Client) Grant(ctx context.Context, object map[string]any) (map[string]any, error) {
	op, err := grantOperation("get", object)
	if err != nil {
		return nil, err
	}
	var found map[string]any
	err = c.decode(ctx, op, c.request(op), fmt.Sprintf("a %v", object["kind"]), &found)
	return found, err
}

// DeleteGrant deletes an object that Grant returned. It returns ErrConflict if the object has changed since.
func (c *Client) DeleteGrant(ctx context.Context, found map[string]any, dryRun bool) error {
	op, err := grantOperation("delete", found)
	if err != nil {
		return err
	}
	metadata, _ := found["metadata"].(map[string]any)
	uid, _ := metadata["uid"].(string)
	version, _ := metadata["resourceVersion"].(string)
	if dryRun {
		return c.remove(ctx, op, types.UID(uid), version, metav1.DryRunAll)
	}
	return c.remove(ctx, op, types.UID(uid), version)
}
