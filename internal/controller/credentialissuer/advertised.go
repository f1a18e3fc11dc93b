package credentialissuer

import (
	"encoding/base64"
	"slices"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// reportedProxy returns what the status says of the proxy; the zero value if it says nothing.
func reportedProxy(issuer *configv1alpha1.CredentialIssuer) configv1alpha1.CredentialIssuerStrategy {
	all := issuer.Status.Strategies
	i := slices.IndexFunc(all, func(s configv1alpha1.CredentialIssuerStrategy) bool {
		return s.Type == configv1alpha1.StrategyImpersonationProxy
	})
	if i < 0 {
		return configv1alpha1.CredentialIssuerStrategy{}
	}
	return all[i]
}

// frontendInfo returns where a strategy tells clients to connect, and their CA bundle, which is empty where they use their
// system roots. found is false when it tells them nothing.
func frontendInfo(strategy configv1alpha1.CredentialIssuerStrategy) (endpoint string, bundle []byte, found bool) {
	if strategy.Frontend == nil || strategy.Frontend.ImpersonationProxyInfo == nil {
		return "", nil, false
	}
	info := strategy.Frontend.ImpersonationProxyInfo
	bundle, err := base64.StdEncoding.DecodeString(info.CertificateAuthorityData)
	return info.Endpoint, bundle, err == nil
}

// advertisedBundle returns the CA bundle that the status tells clients to verify the proxy with. It is empty where
// clients use their system roots. The second result is false when the proxy is not advertised.
func advertisedBundle(issuer *configv1alpha1.CredentialIssuer) ([]byte, bool) {
	strategy := reportedProxy(issuer)
	_, bundle, found := frontendInfo(strategy)
	if !found || strategy.Status != configv1alpha1.StrategySuccess {
		return nil, false
	}
	return bundle, true
}
