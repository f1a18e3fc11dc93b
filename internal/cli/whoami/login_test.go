package whoami

import (
	"strings"
	"testing"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// TestStrategies checks an API server with two strategies, and a proxy in front of it.
func TestStrategies(t *testing.T) {
	t.Parallel()
	const server, proxy = "https://kube.example.com", "https://proxy.example.com/"
	at := func(kind configv1alpha1.StrategyType, status configv1alpha1.StrategyStatus,
	) configv1alpha1.CredentialIssuerStrategy {
		return configv1alpha1.CredentialIssuerStrategy{
			Type: kind, Status: status, Frontend: &configv1alpha1.CredentialIssuerFrontend{
				TokenCredentialRequestAPIInfo: &configv1alpha1.TokenCredentialRequestAPIInfo{Server: server},
			},
		}
	}
	signer := at(configv1alpha1.StrategyKubeClusterSigningCertificate, configv1alpha1.StrategySuccess)
	tokens := at(configv1alpha1.StrategyServiceAccountToken, configv1alpha1.StrategySuccess)
	broken := at(configv1alpha1.StrategyKubeClusterSigningCertificate, configv1alpha1.StrategyError)
	through := configv1alpha1.CredentialIssuerStrategy{
		Type: configv1alpha1.StrategyImpersonationProxy, Status: configv1alpha1.StrategySuccess,
		Frontend: &configv1alpha1.CredentialIssuerFrontend{
			ImpersonationProxyInfo: &configv1alpha1.ImpersonationProxyInfo{Endpoint: proxy},
		},
	}
	both := []configv1alpha1.CredentialIssuerStrategy{signer, through, tokens}
	for _, test := range []struct {
		name       string
		credential credential
		strategies []configv1alpha1.CredentialIssuerStrategy
		server     string
		want       string
	}{
		{name: "knows a certificate", credential: credential{exchanged: true, kind: certificateKind}, want: "KubeClusterSigningCertificate"},
		{name: "knows a token", credential: credential{exchanged: true, kind: tokenKind}, want: "ServiceAccountToken"},
		{
			name: "knows what was asked for", credential: credential{exchanged: true, asked: "ServiceAccountToken"},
			want: "ServiceAccountToken",
		},
		{
			name: "names both when it cannot know", credential: credential{exchanged: true},
			want: "KubeClusterSigningCertificate or ServiceAccountToken",
		},
		{
			name: "names the one that works", credential: credential{exchanged: true}, want: "ServiceAccountToken",
			strategies: []configv1alpha1.CredentialIssuerStrategy{broken, tokens},
		},
		{name: "says nothing of an administrator's certificate", credential: credential{kind: certificateKind}},
		{name: "says nothing of a token that the API server itself takes", credential: credential{kind: tokenKind}},
		{name: "knows the proxy, with any credential", credential: credential{kind: tokenKind}, server: "https://proxy.example.com", want: "ImpersonationProxy"},
		{name: "knows none elsewhere", credential: credential{exchanged: true}, server: "https://other.example.com"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.strategies == nil {
				test.strategies = both
			}
			if test.server == "" {
				test.server = server
			}
			var issuers [2]configv1alpha1.CredentialIssuer // the second is a duplicate
			for i := range issuers {
				issuers[i].Status.Strategies = test.strategies
			}
			if got := strings.Join(test.credential.strategies(issuers[:], test.server), " or "); got != test.want {
				t.Errorf("want %q, got %q", test.want, got)
			}
		})
	}
}
