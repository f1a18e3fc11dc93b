package discoverytest

import (
	"encoding/base64"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Issuer returns a CredentialIssuer with the strategies.
func Issuer(
	suffix, name string,
	strategies ...configv1alpha1.CredentialIssuerStrategy,
) *configv1alpha1.CredentialIssuer {
	return &configv1alpha1.CredentialIssuer{
		TypeMeta:   metav1.TypeMeta{APIVersion: apis.GroupsFor(suffix).Config.String(), Kind: "CredentialIssuer"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &configv1alpha1.ImpersonationProxySpec{
			Mode: configv1alpha1.ImpersonationProxyModeEnabled,
		}},
		Status: configv1alpha1.CredentialIssuerStatus{Strategies: strategies},
	}
}

// ProxyStrategy returns a successful impersonation proxy at endpoint, with the CA bundle (PEM) published.
func ProxyStrategy(endpoint string, caBundle []byte) configv1alpha1.CredentialIssuerStrategy {
	return configv1alpha1.CredentialIssuerStrategy{
		Type: configv1alpha1.StrategyImpersonationProxy, Status: configv1alpha1.StrategySuccess,
		Reason: configv1alpha1.ReasonListening, Message: "impersonation proxy is ready to accept client connections",
		Frontend: &configv1alpha1.CredentialIssuerFrontend{
			Type: configv1alpha1.FrontendImpersonationProxy,
			ImpersonationProxyInfo: &configv1alpha1.ImpersonationProxyInfo{
				Endpoint: endpoint, CertificateAuthorityData: base64.StdEncoding.EncodeToString(caBundle),
			},
		},
	}
}

// TokenStrategy returns a successful TokenCredentialRequest API at server.
func TokenStrategy(server string, caBundle []byte) configv1alpha1.CredentialIssuerStrategy {
	return configv1alpha1.CredentialIssuerStrategy{
		Type: configv1alpha1.StrategyKubeClusterSigningCertificate, Status: configv1alpha1.StrategySuccess,
		Reason: configv1alpha1.ReasonFetchedKey, Message: "key was fetched successfully",
		Frontend: &configv1alpha1.CredentialIssuerFrontend{
			Type: configv1alpha1.FrontendTokenCredentialRequestAPI,
			TokenCredentialRequestAPIInfo: &configv1alpha1.TokenCredentialRequestAPIInfo{
				Server: server, CertificateAuthorityData: base64.StdEncoding.EncodeToString(caBundle),
			},
		},
	}
}

// AccountStrategy returns a successful strategy ServiceAccountToken at server.
func AccountStrategy(server string, caBundle []byte) configv1alpha1.CredentialIssuerStrategy {
	strategy := TokenStrategy(server, caBundle)
	strategy.Type, strategy.Reason = configv1alpha1.StrategyServiceAccountToken, configv1alpha1.ReasonIssuingTokens
	strategy.Message = "users get tokens of service accounts"
	return strategy
}

// FailedStrategy returns a strategy that failed.
func FailedStrategy(
	kind configv1alpha1.StrategyType,
	reason configv1alpha1.StrategyReason,
	message string,
) configv1alpha1.CredentialIssuerStrategy {
	return configv1alpha1.CredentialIssuerStrategy{
		Type: kind, Status: configv1alpha1.StrategyError, Reason: reason, Message: message,
	}
}

// Webhook returns a WebhookAuthenticator.
func Webhook(suffix, name string) *authenticationv1alpha1.WebhookAuthenticator {
	return &authenticationv1alpha1.WebhookAuthenticator{
		TypeMeta:   metav1.TypeMeta{APIVersion: apis.GroupsFor(suffix).Authentication.String(), Kind: "WebhookAuthenticator"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       authenticationv1alpha1.WebhookAuthenticatorSpec{Endpoint: "https://webhook.example.com/authenticate"},
		Status:     authenticationv1alpha1.WebhookAuthenticatorStatus{Phase: authenticationv1alpha1.PhaseReady},
	}
}

// JWT returns a JWTAuthenticator.
func JWT(suffix, name, issuer, audience string) *authenticationv1alpha1.JWTAuthenticator {
	return &authenticationv1alpha1.JWTAuthenticator{
		TypeMeta:   metav1.TypeMeta{APIVersion: apis.GroupsFor(suffix).Authentication.String(), Kind: "JWTAuthenticator"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       authenticationv1alpha1.JWTAuthenticatorSpec{Issuer: issuer, Audience: audience},
		Status:     authenticationv1alpha1.JWTAuthenticatorStatus{Phase: authenticationv1alpha1.PhaseReady},
	}
}
