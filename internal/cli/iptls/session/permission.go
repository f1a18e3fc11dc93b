package session

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// agentAccount returns the service account of a CredentialIssuer's agent.
func agentAccount(namespace string, issuer *configv1alpha1.CredentialIssuer) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: discovery.AppName(issuer.Name)}
}

// mayUse checks whether the agent may use a Secret of another namespace, without reading it: the result does not reveal
// whether the Secret exists. A finding that refuses says why not; a warning says what could not be checked.
func mayUse(ctx context.Context, cluster Permissions, secret, account types.NamespacedName) ([]certs.Finding, error) {
	refused := func(outcome delegation.Outcome) []certs.Finding {
		return []certs.Finding{delegation.Refusal(outcome, secret, account.Namespace)}
	}
	all, err := cluster.Delegations(ctx, secret.Namespace)
	if errors.Is(err, discovery.ErrNotFound) {
		return refused(delegation.NoDelegations), nil
	}
	if err != nil {
		return nil, WithCodes(fmt.Errorf("checking whether Secret %q may be used: %w", secret, err))
	}
	if !delegation.Decide(secret, account.Namespace, all).Permitted {
		return refused(delegation.NotDelegated), nil
	}
	allowed, err := cluster.MayReadSecret(ctx, account, secret)
	switch {
	case errors.Is(err, discovery.ErrForbidden):
		unknown := certs.NewFinding(certs.SecretNotPermitted,
			fmt.Sprintf("you are not permitted to check whether RBAC lets the agent's service account %q read Secret "+
				"%q", account,
				secret))
		unknown.Severity, unknown.Hint = certs.SeverityWarning,
			"if it does not, the CredentialIssuer's status says so"
		return []certs.Finding{unknown}, nil
	case err != nil:
		return nil, WithCodes(fmt.Errorf("checking whether Secret %q may be used: %w", secret, err))
	case !allowed:
		return refused(delegation.NotReadable), nil
	}
	return nil, nil
}
