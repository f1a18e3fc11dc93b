package satoken

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
)

// The API server enforces a changed role a moment after it has stored it.
const (
	effectInterval = 10 * time.Millisecond
	effectTimeout  = 5 * time.Second
)

// permit makes the role and binding of an account exactly what they should be, which removes anything that others have
// added, and returns when the API server enforces them.
func (a *Accounts) permit(ctx context.Context, account *corev1.ServiceAccount, want *rbacv1.ClusterRole) error {
	before, err := a.writeRole(ctx, want)
	if err != nil {
		return fmt.Errorf("writing the ClusterRole of the user's service account: %w", err)
	}
	bound, err := a.writeBinding(ctx, binding(account))
	if err != nil {
		return fmt.Errorf("binding the ClusterRole of the user's service account: %w", err)
	}
	check, allowed, changed := difference(before, want.Rules)
	if bound {
		check, allowed, changed = permissionsOf(want.Rules[:1])[0], true, true
	}
	if !changed {
		return nil
	}
	if err := a.waitForEffect(ctx, account, check, allowed); err != nil {
		return fmt.Errorf("waiting for the ClusterRole of the user's service account to take effect: %w", err)
	}
	return nil
}

// writeRole returns the previous rules of the role.
func (a *Accounts) writeRole(ctx context.Context, want *rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	roles := a.Manager.RbacV1().ClusterRoles()
	return retry(func() ([]rbacv1.PolicyRule, error) {
		have, err := roles.Get(ctx, want.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = roles.Create(ctx, want, metav1.CreateOptions{})
			return nil, err
		}
		if err != nil {
			return nil, err
		}
		if sameMeta(have.ObjectMeta, want.ObjectMeta) && have.AggregationRule == nil &&
			equality.Semantic.DeepEqual(have.Rules, want.Rules) {
			return have.Rules, nil
		}
		changed := want.DeepCopy()
		changed.ResourceVersion = have.ResourceVersion
		_, err = roles.Update(ctx, changed, metav1.UpdateOptions{})
		return have.Rules, err
	})
}

// writeBinding reports whether it wrote anything.
func (a *Accounts) writeBinding(ctx context.Context, want *rbacv1.ClusterRoleBinding) (bool, error) {
	bindings := a.Manager.RbacV1().ClusterRoleBindings()
	return retry(func() (bool, error) {
		have, err := bindings.Get(ctx, want.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = bindings.Create(ctx, want, metav1.CreateOptions{})
			return true, err
		}
		if err != nil {
			return false, err
		}
		if have.RoleRef != want.RoleRef { // it is immutable
			if err := bindings.Delete(ctx, want.Name, unchanged(have)); err != nil {
				return false, err
			}
			_, err = bindings.Create(ctx, want, metav1.CreateOptions{})
			return true, err
		}
		if sameMeta(have.ObjectMeta, want.ObjectMeta) && equality.Semantic.DeepEqual(have.Subjects, want.Subjects) {
			return false, nil
		}
		changed := want.DeepCopy()
		changed.ResourceVersion = have.ResourceVersion
		_, err = bindings.Update(ctx, changed, metav1.UpdateOptions{})
		return true, err
	})
}

func sameMeta(have, want metav1.ObjectMeta) bool {
	return have.DeletionTimestamp == nil && maps.Equal(have.Labels, want.Labels) &&
		maps.Equal(have.Annotations, want.Annotations)
}

// unchanged returns options that delete an object only if it is as it was observed.
func unchanged(observed metav1.Object) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
		UID: ptr.To(observed.GetUID()), ResourceVersion: ptr.To(observed.GetResourceVersion()),
	}}
}

// permission is what a rule permits for one resource name.
type permission struct{ verb, group, resource, name string }

// permissionsOf returns the permissions of rules that have resource names.
func permissionsOf(rules []rbacv1.PolicyRule) []permission {
	var all []permission
	for _, rule := range rules {
		for _, name := range rule.ResourceNames {
			all = append(all, permission{rule.Verbs[0], rule.APIGroups[0], rule.Resources[0], name})
		}
	}
	return all
}

// difference returns a permission that shows whether the API server enforces the new rules: one that they remove, else
// one that they add. changed is false if there is none.
func difference(before, after []rbacv1.PolicyRule) (check permission, allowed, changed bool) {
	had, has := permissionsOf(before), permissionsOf(after)
	for _, p := range had {
		if !slices.Contains(has, p) {
			return p, false, true
		}
	}
	for _, p := range has {
		if !slices.Contains(had, p) {
			return p, true, true
		}
	}
	return permission{}, false, false
}

var errNoEffect = errors.New("the API server still uses the old one")

// waitForEffect waits until the API server authorizes the account as expected.
func (a *Accounts) waitForEffect(
	ctx context.Context, account *corev1.ServiceAccount, p permission, allowed bool,
) error {
	last := errNoEffect
	err := wait.PollUntilContextTimeout(ctx, effectInterval, effectTimeout, true,
		func(ctx context.Context) (bool, error) {
			resource, subresource, _ := strings.Cut(p.resource, "/") // userextras/KEY
			review, err := a.Reviewer.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{
					User:   "system:serviceaccount:" + account.Namespace + ":" + account.Name,
					UID:    string(account.UID),
					Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + account.Namespace, "system:authenticated"},
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Verb: p.verb, Group: p.group, Version: "v1", Resource: resource, Subresource: subresource, Name: p.name,
					},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				if ctx.Err() == nil { // the previous response says more than a timeout
					last = err
				}
				return false, nil
			}
			last = errNoEffect
			return review.Status.Allowed == allowed, nil
		})
	if err != nil && ctx.Err() == nil {
		return last
	}
	return err
}
