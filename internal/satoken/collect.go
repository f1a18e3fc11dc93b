package satoken

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const pageSize = 500

// Collect deletes the accounts whose tokens have all expired, with their roles and bindings. If all is true, it deletes
// every account, and its tokens stop working at once.
//
// It lists roles and bindings before accounts, so that one without an account is an orphan, and deletes an object only
// if it has not changed since. A login first writes to the account, or makes a new one, whose UID it then writes to the
// role and binding. So Collect never deletes an object of a login in progress.
func (a *Accounts) Collect(ctx context.Context, all bool) error {
	roles, bindings, err := a.grants(ctx)
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	var problems []error
	deadline := a.Clock.Now().Add(-skew)
	accounts := a.Manager.CoreV1().ServiceAccounts(a.Namespace)
	err = a.each("service accounts", func(options metav1.ListOptions) (list, error) {
		return accounts.List(ctx, options)
	}, func(item runtime.Object) error {
		account := item.(*corev1.ServiceAccount)
		if !all && until(account).After(deadline) {
			kept[account.Name] = true
			return nil
		}
		err := accounts.Delete(ctx, account.Name, unchanged(account))
		if err != nil && !apierrors.IsNotFound(err) {
			kept[account.Name] = true // in use again, or the API server is unavailable
			if !apierrors.IsConflict(err) {
				problems = append(problems, fmt.Errorf("deleting service account %q: %w", account.Name, err))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	rbac := a.Manager.RbacV1()
	for name, observed := range bindings {
		if !kept[name] {
			problems = append(problems, gone(rbac.ClusterRoleBindings().Delete(ctx, name, unchanged(observed))))
		}
	}
	for name, observed := range roles {
		if !kept[name] {
			problems = append(problems, gone(rbac.ClusterRoles().Delete(ctx, name, unchanged(observed))))
		}
	}
	return errors.Join(problems...)
}

// gone ignores errors for an object that has changed or was deleted.
func gone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// grants returns all roles and bindings by name.
func (a *Accounts) grants(ctx context.Context) (roles, bindings map[string]metav1.Object, err error) {
	roles, bindings = map[string]metav1.Object{}, map[string]metav1.Object{}
	// Only the fields for a precondition are kept: a thousand roles with a thousand groups take many megabytes.
	keepIn := func(kept map[string]metav1.Object) func(runtime.Object) error {
		return func(item runtime.Object) error {
			object := item.(metav1.Object)
			kept[object.GetName()] = &metav1.ObjectMeta{UID: object.GetUID(), ResourceVersion: object.GetResourceVersion()}
			return nil
		}
	}
	if err := a.each("ClusterRoles", func(options metav1.ListOptions) (list, error) {
		return a.Manager.RbacV1().ClusterRoles().List(ctx, options)
	}, keepIn(roles)); err != nil {
		return nil, nil, err
	}
	return roles, bindings, a.each("ClusterRoleBindings", func(options metav1.ListOptions) (list, error) {
		return a.Manager.RbacV1().ClusterRoleBindings().List(ctx, options)
	}, keepIn(bindings))
}

type list interface {
	runtime.Object
	metav1.ListInterface
}

// each visits all objects of this package, page by page.
func (a *Accounts) each(
	kind string, read func(metav1.ListOptions) (list, error), visit func(runtime.Object) error,
) error {
	options := metav1.ListOptions{LabelSelector: NamespaceLabel + "=" + a.Namespace, Limit: pageSize}
	for {
		page, err := read(options)
		if err != nil {
			return fmt.Errorf("listing %s: %w", kind, err)
		}
		if err := apimeta.EachListItem(page, visit); err != nil || page.GetContinue() == "" {
			return err
		}
		options.Continue = page.GetContinue()
	}
}
