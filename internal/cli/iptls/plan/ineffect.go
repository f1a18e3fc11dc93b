package plan

import (
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// InEffect says whether the agent reports that it does what the spec asks for. A proxy that is off, or of which the
// agent reports nothing, shows nothing to the contrary.
func InEffect(issuer *configv1alpha1.CredentialIssuer) bool {
	strategy, tls := ProxyStrategy(issuer), issuer.Spec.ImpersonationProxy.TLS
	if seen := issuer.Status.ObservedGeneration; seen != 0 && seen < issuer.Generation {
		return false // not yet
	}
	switch serving := issuer.Status.ServingCertificate; {
	case strategy == nil, strategy.Reason == configv1alpha1.ReasonDisabled:
		return true
	case strategy.Status != configv1alpha1.StrategySuccess:
		return ServesGenerated(tls)
	case serving == nil: // another program's agent
		return true
	case ServesGenerated(tls):
		return serving.Source == configv1alpha1.ServingCertificateGenerated
	default:
		return serving.Source == configv1alpha1.ServingCertificateSecret && serving.SecretName == tls.SecretName
	}
}
