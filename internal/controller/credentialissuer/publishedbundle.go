package credentialissuer

import (
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// publishedBundle returns the trust bundle that the status publishes, which is empty for the system roots. The second
// result is false if the proxy does not work.
func publishedBundle(issuer *configv1alpha1.CredentialIssuer) ([]byte, bool) {
	strategy := serving.Strategy(issuer)
	_, bundle, found := serving.Frontend(strategy)
	if !found || strategy.Status != configv1alpha1.StrategySuccess {
		return nil, false
	}
	return bundle, true
}
