package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// measureGrant gives a user a permission that was refused a moment ago, and takes it away again.
func measureGrant(ctx context.Context, w *world, r *report) error {
	for _, way := range w.ways() {
		granted, revoked, err := grant(ctx, w, way)
		if err != nil {
			return fmt.Errorf("%s: %w", way, err)
		}
		r.addFigure(
			"grant",
			way,
			figure{
				name:   "a permission just granted works after",
				unit:   "ms",
				value:  milliseconds([]time.Duration{granted})[0],
				atMost: 1000,
			},
		)
		r.addFigure(
			"grant",
			way,
			figure{
				name:   "a permission just revoked is gone after",
				unit:   "ms",
				value:  milliseconds([]time.Duration{revoked})[0],
				atMost: 10_500,
			},
		)
	}
	return nil
}

func grant(ctx context.Context, w *world, way string) (granted, revoked time.Duration, err error) {
	configs, err := w.newUser() // in no group that may do anything
	if err != nil {
		return 0, 0, err
	}
	c, err := newClient(configs[way], 1)
	if err != nil {
		return 0, 0, err
	}
	defer c.close()
	what := get(configMaps + "/" + objectName(0))
	until := func(code int) (time.Duration, error) {
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		err := poll(limited, fmt.Sprintf("an answer with %d", code), func() error {
			what.want = code
			_, err := c.do(limited, 0, what)
			var other *wrongAnswer
			if err != nil && (!errors.As(err, &other) || other.code != http.StatusOK && other.code != http.StatusForbidden) {
				return fmt.Errorf("an answer that should not be: %w", err)
			}
			return err
		})
		return time.Since(began), err
	}
	if _, err := until(http.StatusForbidden); err != nil {
		return 0, 0, err
	}
	user := fmt.Sprintf("user-%d", w.users)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: group},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
	if _, err := w.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return 0, 0, err
	}
	if granted, err = until(http.StatusOK); err != nil {
		return 0, 0, err
	}
	if err := w.admin.RbacV1().ClusterRoleBindings().Delete(ctx, user, metav1.DeleteOptions{}); err != nil {
		return 0, 0, err
	}
	revoked, err = until(http.StatusForbidden)
	return granted, revoked, err
}
