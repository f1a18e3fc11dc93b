package credentialissuer

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// useBearerTokens configures which tokens the proxy accepts.
func (r *Reconciler) useBearerTokens(ctx context.Context, spec configv1alpha1.ImpersonationProxySpec) {
	if r.BearerTokens == nil {
		return
	}
	accepted := ptr.Deref(spec.BearerTokens, configv1alpha1.BearerTokensSpec{})
	r.BearerTokens(accepted)
	r.bearerProblem = r.unknownAuthenticators(ctx, accepted.Authenticators)
}

// unknownAuthenticators returns a warning about authenticators that do not exist, or nil. The next reconcile notices
// one that is created later.
func (r *Reconciler) unknownAuthenticators(
	ctx context.Context,
	named []configv1alpha1.BearerTokenAuthenticator,
) *configv1alpha1.StrategyFinding {
	var unknown []string
	for _, entry := range named {
		var object client.Object = &authenticationv1alpha1.JWTAuthenticator{}
		if entry.Kind == configv1alpha1.AuthenticatorKindWebhook {
			object = &authenticationv1alpha1.WebhookAuthenticator{}
		}
		if apierrors.IsNotFound(r.Client.Get(ctx, types.NamespacedName{Name: entry.Name}, object)) {
			unknown = append(unknown, fmt.Sprintf("%s %q", entry.Kind, entry.Name))
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	finding := newFinding(configv1alpha1.CodeAuthenticatorUnknown, configv1alpha1.FindingWarning,
		"spec.impersonationProxy.bearerTokens names authenticators that do not exist: "+strings.Join(unknown, ", ")+
			"; until they exist, tokens that they might verify get 503")
	return &finding
}
