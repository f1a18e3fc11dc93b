package satoken

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	err = a.eachAccount(ctx, func(account *corev1.ServiceAccount) {
		if !all && until(account).After(deadline) {
			kept[account.Name] = true
			return
		}
		err := a.Manager.CoreV1().ServiceAccounts(a.Namespace).Delete(ctx, account.Name, unchanged(account))
		if err != nil && !apierrors.IsNotFound(err) {
			kept[account.Name] = true // in use again, or the API server is unavailable
			if !apierrors.IsConflict(err) {
				problems = append(problems, fmt.Errorf("deleting service account %q: %w", account.Name, err))
			}
		}
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
	err = eachPage(a.options(), func(options metav1.ListOptions) (string, error) {
		page, err := a.Manager.RbacV1().ClusterRoles().List(ctx, options)
		if err != nil {
			return "", fmt.Errorf("listing ClusterRoles: %w", err)
		}
		for i := range page.Items {
			roles[page.Items[i].Name] = identityOf(&page.Items[i])
		}
		return page.Continue, nil
	})
	if err != nil {
		return nil, nil, err
	}
	err = eachPage(a.options(), func(options metav1.ListOptions) (string, error) {
		page, err := a.Manager.RbacV1().ClusterRoleBindings().List(ctx, options)
		if err != nil {
			return "", fmt.Errorf("listing ClusterRoleBindings: %w", err)
		}
		for i := range page.Items {
			bindings[page.Items[i].Name] = identityOf(&page.Items[i])
		}
		return page.Continue, nil
	})
	return roles, bindings, err
}

// identityOf keeps only the fields for a precondition: a thousand roles with a thousand groups take many megabytes.
func identityOf[T interface {
	*rbacv1.ClusterRole | *rbacv1.ClusterRoleBinding
	metav1.Object
}](object T) metav1.Object {
	return &metav1.ObjectMeta{UID: object.GetUID(), ResourceVersion: object.GetResourceVersion()}
}

func (a *Accounts) eachAccount(ctx context.Context, visit func(*corev1.ServiceAccount)) error {
	return eachPage(a.options(), func(options metav1.ListOptions) (string, error) {
		page, err := a.Manager.CoreV1().ServiceAccounts(a.Namespace).List(ctx, options)
		if err != nil {
			return "", fmt.Errorf("listing service accounts: %w", err)
		}
		for i := range page.Items {
			visit(&page.Items[i])
		}
		return page.Continue, nil
	})
}

func (a *Accounts) options() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: NamespaceLabel + "=" + a.Namespace, Limit: pageSize}
}

func eachPage(options metav1.ListOptions, list func(metav1.ListOptions) (next string, err error)) error {
	for {
		next, err := list(options)
		if err != nil || next == "" {
			return err
		}
		options.Continue = next
	}
}
