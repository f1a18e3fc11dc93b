package credentialissuer

import (
	"encoding/base64"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// advertisedBundle returns the CA bundle that the status tells clients to verify the proxy with. It is empty where
// clients use their system roots. The second result is false when the proxy is not advertised.
func advertisedBundle(issuer *configv1alpha1.CredentialIssuer) ([]byte, bool) {
	for _, strategy := range issuer.Status.Strategies {
		if strategy.Type == configv1alpha1.StrategyImpersonationProxy &&
			strategy.Status == configv1alpha1.StrategySuccess {
			return frontendBundle(issuer)
		}
	}
	return nil, false
}

// frontendBundle is advertisedBundle, also while the status tells of an error beside the frontend.
func frontendBundle(issuer *configv1alpha1.CredentialIssuer) ([]byte, bool) {
	for _, strategy := range issuer.Status.Strategies {
		if strategy.Type != configv1alpha1.StrategyImpersonationProxy || strategy.Frontend == nil ||
			strategy.Frontend.ImpersonationProxyInfo == nil {
			continue
		}
		bundle, err := base64.StdEncoding.DecodeString(strategy.Frontend.ImpersonationProxyInfo.CertificateAuthorityData)
		return bundle, err == nil
	}
	return nil, false
}
