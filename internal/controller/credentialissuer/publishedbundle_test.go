package credentialissuer

import (
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

func TestPublishedBundle(t *testing.T) {
	t.Parallel()
	at := serving.Endpoint{Host: "proxy.example.com"}
	for _, test := range []struct {
		name       string
		strategies []configv1alpha1.CredentialIssuerStrategy
		want       string
		found      bool
	}{
		{name: "finds none in an empty status"},
		{
			name: "finds none while the proxy is in error",
			strategies: []configv1alpha1.CredentialIssuerStrategy{
				proxyStrategy(configv1alpha1.StrategyError, configv1alpha1.ReasonPending, "x"),
			},
		},
		{
			name: "finds the bundle",
			strategies: []configv1alpha1.CredentialIssuerStrategy{
				publishing(at, []byte("PEM")),
			},
			want: "PEM", found: true,
		},
		{
			name:       "finds that there is none to use",
			strategies: []configv1alpha1.CredentialIssuerStrategy{publishing(at, nil)},
			found:      true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			issuer := &configv1alpha1.CredentialIssuer{}
			issuer.Status.Strategies = test.strategies
			if got, found := publishedBundle(issuer); string(got) != test.want || found != test.found {
				t.Errorf("%q, %v", got, found)
			}
		})
	}
}

func publishing(at serving.Endpoint, bundle []byte) configv1alpha1.CredentialIssuerStrategy {
	strategy := proxyStrategy(configv1alpha1.StrategySuccess, configv1alpha1.ReasonListening, messageListening)
	strategy.Frontend = frontend(at, bundle)
	return strategy
}
