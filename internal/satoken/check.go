package satoken

import (
	"context"
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"
)

// Errors of Check.
var (
	// ErrNotPermitted means that the overlay in deploy/serviceaccounttokens is not installed for this agent.
	ErrNotPermitted = errors.New("the agent cannot manage users' service accounts: apply the overlay in " +
		"deploy/serviceaccounttokens")
	// ErrUnguarded means that the manager can write any ClusterRole, because the admission policy is missing or old.
	ErrUnguarded = errors.New(
		"the ValidatingAdmissionPolicy that limits which ClusterRoles the agent can write is missing or " +
			"outdated: apply the overlay in deploy/serviceaccounttokens",
	)
)

// probeUser is the user that Check impersonates. The account that can do so has no other use, and its tokens never
// leave the agent.
const (
	probeUser            = "pinniped-probe"
	probeUserConstrained = "pinniped-probe-constrained"
)

// Check performs a complete login and impersonation with the probe user. It reports whether the cluster supports
// constrained impersonation. server is how to reach the API server, without credentials.
func (a *Accounts) Check(ctx context.Context, server *rest.Config) (constrained bool, err error) {
	if err := a.checkGuard(ctx); err != nil {
		return false, err
	}
	probe := Identity{Username: probeUser}
	name := probe.name(a.Namespace)
	a.locks.LockKey(name)
	defer func() { _ = a.locks.UnlockKey(name) }() // it always returns nil
	account, err := a.account(ctx, probe)
	if err != nil {
		return false, explain(err)
	}
	// One role has rules for both kinds of impersonation, of different users. Once plain impersonation works, the API
	// server enforces the role, so the result for constrained impersonation is final.
	both := role(account, probe, false)
	both.Rules = append(both.Rules, constrainedRules(Identity{Username: probeUserConstrained})...)
	if err := a.permit(ctx, account, both); err != nil {
		return false, explain(err)
	}
	credential, err := a.token(ctx, account, probe.headers())
	if err != nil {
		return false, explain(err)
	}
	return tryImpersonation(ctx, server, credential.Token)
}

// checkGuard tries to write ClusterRoles that are never needed, as dry runs. The admission policy must deny them all.
func (a *Accounts) checkGuard(ctx context.Context) error {
	masters := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: NamePrefix + "guard-check", Labels: labels(a.Namespace)},
		Rules:      legacyRules(Identity{Username: probeUser, Groups: []string{"system:masters"}}),
	}
	collected := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: masters.Name, Labels: labels(a.Namespace)},
		Rules:      legacyRules(Identity{Username: probeUser}),
	}
	collected.Labels[rbacv1.GroupName+"/aggregate-to-view"] = "true" // every viewer would get its rules
	for _, role := range []*rbacv1.ClusterRole{masters, collected} {
		_, err := a.Manager.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll},
		})
		switch {
		case err == nil:
			return ErrUnguarded
		case !apierrors.IsInvalid(err): // the policy's reason is Invalid
			return explain(err)
		}
	}
	return nil
}

func explain(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", ErrNotPermitted, err)
	}
	return err
}

// tryImpersonation reports whether the token permits constrained impersonation.
func tryImpersonation(ctx context.Context, server *rest.Config, token string) (bool, error) {
	ask := func(ctx context.Context, username string) error {
		config := rest.AnonymousClientConfig(server)
		config.BearerToken = token
		config.Impersonate = rest.ImpersonationConfig{UserName: username}
		client, err := authenticationv1client.NewForConfig(config)
		if err != nil {
			return err
		}
		_, err = client.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err
	}
	var last error
	err := wait.PollUntilContextTimeout(ctx, effectInterval, effectTimeout, true, func(ctx context.Context) (bool, error) {
		last = ask(ctx, probeUser)
		return last == nil, nil
	})
	if err != nil {
		return false, fmt.Errorf("impersonating a user with a service account token: %w", errors.Join(last, ctx.Err()))
	}
	err = ask(ctx, probeUserConstrained)
	if apierrors.IsForbidden(err) {
		return false, nil
	}
	return err == nil, err
}
