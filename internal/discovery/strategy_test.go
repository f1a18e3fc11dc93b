package discovery_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
)

func TestChooseStrategy(t *testing.T) {
	t.Parallel()
	const tokenMode, proxyMode = configv1alpha1.FrontendTokenCredentialRequestAPI, configv1alpha1.FrontendImpersonationProxy
	token := discoverytest.TokenStrategy("https://kube.example.com", []byte("kube CA"))
	proxy := discoverytest.ProxyStrategy("https://proxy.example.com", []byte("proxy CA"))
	public := discoverytest.ProxyStrategy("https://proxy.example.com", nil)
	pending := discoverytest.FailedStrategy(
		configv1alpha1.StrategyImpersonationProxy,
		configv1alpha1.ReasonPending,
		"waiting for load balancer",
	)
	noKey := discoverytest.FailedStrategy(
		configv1alpha1.StrategyKubeClusterSigningCertificate,
		configv1alpha1.ReasonCouldNotFetchKey,
		"no key",
	)
	failedWithFrontend := proxy
	failedWithFrontend.Status = configv1alpha1.StrategyError
	lastKnownGood := failedWithFrontend
	lastKnownGood.Message = "Expired: so it is"
	lastKnownGood.Findings = []configv1alpha1.StrategyFinding{{Code: configv1alpha1.CodeLastKnownGoodCertificateServed}}
	noFrontend := proxy
	noFrontend.Frontend = nil
	emptyFrontend := proxy
	emptyFrontend.Frontend = &configv1alpha1.CredentialIssuerFrontend{Type: proxyMode}
	foreign := proxy
	foreign.Frontend = &configv1alpha1.CredentialIssuerFrontend{Type: "Teleportation"}
	spoiled := proxy
	spoiled.Frontend = &configv1alpha1.CredentialIssuerFrontend{
		Type: proxyMode,
		ImpersonationProxyInfo: &configv1alpha1.ImpersonationProxyInfo{
			Endpoint: "https://proxy.example.com", CertificateAuthorityData: "!",
		},
	}

	account := discoverytest.AccountStrategy("https://kube.example.com", []byte("kube CA"))
	accountFrontend := &discovery.Frontend{
		Strategy: configv1alpha1.StrategyServiceAccountToken,
		Mode:     tokenMode,
		Endpoint: "https://kube.example.com",
		CABundle: []byte("kube CA"),
	}
	tokenFrontend := &discovery.Frontend{
		Strategy: configv1alpha1.StrategyKubeClusterSigningCertificate,
		Mode:     tokenMode,
		Endpoint: "https://kube.example.com",
		CABundle: []byte("kube CA"),
	}
	proxyFrontend := &discovery.Frontend{
		Strategy: configv1alpha1.StrategyImpersonationProxy,
		Mode:     proxyMode,
		Endpoint: "https://proxy.example.com",
		CABundle: []byte("proxy CA"),
	}
	for _, test := range []struct {
		name       string
		strategies []configv1alpha1.CredentialIssuerStrategy
		mode       discovery.Mode
		want       *discovery.Frontend
		says       string
		pending    bool
	}{
		{
			name: "takes the first that works", strategies: []configv1alpha1.CredentialIssuerStrategy{token, proxy},
			want: tokenFrontend,
		},
		{
			name: "passes over one that failed", strategies: []configv1alpha1.CredentialIssuerStrategy{noKey, proxy},
			want: proxyFrontend,
		},
		{
			name:       "takes the proxy while the last known good certificate is served, and says so",
			strategies: []configv1alpha1.CredentialIssuerStrategy{noKey, lastKnownGood},
			want: &discovery.Frontend{
				Strategy: configv1alpha1.StrategyImpersonationProxy,
				Mode:     proxyFrontend.Mode, Endpoint: proxyFrontend.Endpoint, CABundle: proxyFrontend.CABundle,
				Trouble: "Expired: so it is",
			},
		},
		{
			name: "takes the wanted mode", strategies: []configv1alpha1.CredentialIssuerStrategy{token, proxy}, mode: proxyMode,
			want: proxyFrontend,
		},
		{
			name: "takes no CA bundle for the system roots", strategies: []configv1alpha1.CredentialIssuerStrategy{noKey, public},
			want: &discovery.Frontend{
				Strategy: configv1alpha1.StrategyImpersonationProxy,
				Mode:     proxyMode, Endpoint: "https://proxy.example.com", CABundle: []byte{},
			},
		},
		{
			name: "takes a token of a service account last", strategies: []configv1alpha1.CredentialIssuerStrategy{noKey, account},
			want: accountFrontend,
		},
		{
			name: "takes a token of a service account when asked", mode: discovery.ServiceAccountToken,
			strategies: []configv1alpha1.CredentialIssuerStrategy{token, proxy, account}, want: accountFrontend,
		},
		{
			name: "does not take a certificate for a token of a service account", mode: discovery.ServiceAccountToken,
			strategies: []configv1alpha1.CredentialIssuerStrategy{token, proxy}, says: "for mode ServiceAccountToken",
		},
		{
			name:       "takes a working one while another is pending",
			strategies: []configv1alpha1.CredentialIssuerStrategy{token, pending}, want: tokenFrontend,
		},
		{
			name:       "passes over what is incomplete or unknown",
			strategies: []configv1alpha1.CredentialIssuerStrategy{failedWithFrontend, noFrontend, emptyFrontend, foreign, token},
			want:       tokenFrontend,
		},
		{
			name: "waits for one that is pending", strategies: []configv1alpha1.CredentialIssuerStrategy{noKey, pending},
			says: "ImpersonationProxy is Error (Pending: waiting for load balancer)", pending: true,
		},
		{
			name:       "waits for the wanted one that is pending",
			strategies: []configv1alpha1.CredentialIssuerStrategy{token, pending}, mode: proxyMode,
			says: "for mode ImpersonationProxy", pending: true,
		},
		{
			name: "does not wait for another one", strategies: []configv1alpha1.CredentialIssuerStrategy{noKey, pending},
			mode: tokenMode, says: "for mode TokenCredentialRequestAPI",
		},
		{
			name: "does not wait when all failed", strategies: []configv1alpha1.CredentialIssuerStrategy{noKey},
			says: "KubeClusterSigningCertificate is Error (CouldNotFetchKey: no key)",
		},
		{
			name: "waits for an agent that has reported nothing", says: "the agent has not reported any strategy yet",
			pending: true,
		},
		{
			name:       "refuses a CA bundle that is not base64",
			strategies: []configv1alpha1.CredentialIssuerStrategy{spoiled, token}, says: "decoding the CA bundle",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := discovery.ChooseStrategy(discoverytest.Issuer("pinniped.dev", "issuer", test.strategies...), test.mode)
			if test.says == "" && err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("frontend (-want +got):\n%s", diff)
			}
			if test.says == "" {
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("want an error that says %q, got %v", test.says, err)
			}
			none, _ := errors.AsType[*discovery.NoStrategyError](err)
			if got := none != nil && none.Pending(); got != test.pending {
				t.Errorf("want pending %v, got %v", test.pending, got)
			}
		})
	}
}

func TestPendingBefore(t *testing.T) {
	t.Parallel()
	const tokenMode, proxyMode = configv1alpha1.FrontendTokenCredentialRequestAPI, configv1alpha1.FrontendImpersonationProxy
	token := discoverytest.TokenStrategy("https://kube.example.com", []byte("kube CA"))
	proxy := discoverytest.ProxyStrategy("https://proxy.example.com", []byte("proxy CA"))
	onTrial := discoverytest.FailedStrategy(
		configv1alpha1.StrategyKubeClusterSigningCertificate, configv1alpha1.ReasonPending, "asking the signer",
	)
	noAddress := discoverytest.FailedStrategy(
		configv1alpha1.StrategyImpersonationProxy, configv1alpha1.ReasonPending, "waiting for load balancer",
	)
	for _, test := range []struct {
		name       string
		strategies []configv1alpha1.CredentialIssuerStrategy
		mode       discovery.Mode
		want       configv1alpha1.StrategyType
	}{
		{
			name: "waits for the preferred one", strategies: []configv1alpha1.CredentialIssuerStrategy{onTrial, proxy},
			want: configv1alpha1.StrategyKubeClusterSigningCertificate,
		},
		{
			name:       "does not wait for one that nobody asked for",
			strategies: []configv1alpha1.CredentialIssuerStrategy{onTrial, proxy}, mode: proxyMode,
		},
		{
			name:       "does not wait for a worse one",
			strategies: []configv1alpha1.CredentialIssuerStrategy{token, noAddress},
		},
		{
			name:       "waits for the wanted one",
			strategies: []configv1alpha1.CredentialIssuerStrategy{onTrial, proxy}, mode: tokenMode,
			want: configv1alpha1.StrategyKubeClusterSigningCertificate,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := discovery.PendingBefore(discoverytest.Issuer("pinniped.dev", "issuer", test.strategies...), test.mode)
			if got == nil && test.want != "" || got != nil && got.Type != test.want {
				t.Errorf("want %q, got %+v", test.want, got)
			}
		})
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]discovery.Mode{
		"": "", "Auto": "", "impersonationproxy": "ImpersonationProxy", "TOKENCREDENTIALREQUESTAPI": "TokenCredentialRequestAPI",
		"serviceaccounttoken": discovery.ServiceAccountToken,
	} {
		if got, err := discovery.ParseMode(text); err != nil || got != want {
			t.Errorf("mode %q: want %q, got %q, %v", text, want, got, err)
		}
	}
	if _, err := discovery.ParseMode(
		"bad",
	); err == nil ||
		err.Error() != `invalid mode "bad", valid modes are auto, TokenCredentialRequestAPI, ImpersonationProxy and ServiceAccountToken` {
		t.Errorf("got %v", err)
	}
	for text, want := range map[string]discovery.AuthenticatorType{"": "", "WebHook": "webhook", "JWT": "jwt"} {
		if got, err := discovery.ParseAuthenticatorType(text); err != nil || got != want {
			t.Errorf("type %q: want %q, got %q, %v", text, want, got, err)
		}
	}
	if _, err := discovery.ParseAuthenticatorType(
		"bad",
	); err == nil ||
		err.Error() != `invalid authenticator type "bad", supported values are "webhook" and "jwt"` {
		t.Errorf("got %v", err)
	}
}
