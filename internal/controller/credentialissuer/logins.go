package credentialissuer

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// loginProblem returns a warning about logins in the spec whose authenticator is missing or not ready, or nil.
func (r *Reconciler) loginProblem(
	ctx context.Context,
	spec configv1alpha1.ImpersonationProxySpec,
) *configv1alpha1.StrategyFinding {
	if spec.Kubeconfig == nil {
		return nil
	}
	var broken []string
	for _, login := range spec.Kubeconfig.Logins {
		var jwt authenticationv1alpha1.JWTAuthenticator
		var webhook authenticationv1alpha1.WebhookAuthenticator
		name, phase := types.NamespacedName{Name: login.Authenticator.Name}, &jwt.Status.Phase
		var err error
		if login.Authenticator.Kind == configv1alpha1.AuthenticatorKindWebhook {
			err, phase = r.Client.Get(ctx, name, &webhook), &webhook.Status.Phase
		} else {
			err = r.Client.Get(ctx, name, &jwt)
		}
		if err != nil || *phase != authenticationv1alpha1.PhaseReady {
			broken = append(broken, fmt.Sprintf("%q (%s %q)", login.Name, login.Authenticator.Kind, login.Authenticator.Name))
		}
	}
	if len(broken) == 0 {
		return nil
	}
	finding := newFinding(configv1alpha1.CodeLoginUnavailable, configv1alpha1.FindingWarning,
		"spec.impersonationProxy.kubeconfig has logins whose authenticator is missing or not ready: "+
			strings.Join(broken, ", "))
	return &finding
}
