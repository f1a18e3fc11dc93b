package whoami

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
	"github.com/pinniped-toolkit/pinniped/internal/credentialcache"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// strategyTimeout bounds the look at the CredentialIssuers, which most users may not read.
const strategyTimeout = 5 * time.Second

// describe finds out how the user got in, from the kubeconfig, the credential cache, and the cluster if it permits
// that.
func describe(ctx context.Context, f *factory.Factory, cluster *factory.Cluster, client *discovery.Client) Login {
	found := credentialOf(f, cluster)
	ctx, cancel := context.WithTimeout(ctx, strategyTimeout)
	defer cancel()
	issuers, err := client.CredentialIssuers(ctx)
	if err != nil {
		return found
	}
	for i := range issuers {
		if strategy := strategyAt(&issuers[i], cluster.Source.Cluster.Server); strategy != "" {
			found.Strategy = strategy
		}
	}
	return found
}

// strategyAt returns the strategy of issuer whose frontend is at server.
func strategyAt(issuer *configv1alpha1.CredentialIssuer, server string) string {
	for i := range issuer.Status.Strategies {
		strategy := &issuer.Status.Strategies[i]
		if strategy.Status != configv1alpha1.StrategySuccess || strategy.Frontend == nil {
			continue
		}
		at := ""
		if info := strategy.Frontend.ImpersonationProxyInfo; info != nil {
			at = info.Endpoint
		}
		if info := strategy.Frontend.TokenCredentialRequestAPIInfo; info != nil {
			at = info.Server
		}
		if strings.TrimRight(at, "/") == strings.TrimRight(server, "/") {
			return string(strategy.Type)
		}
	}
	return ""
}

func credentialOf(f *factory.Factory, cluster *factory.Cluster) Login {
	config := cluster.REST
	switch {
	case config.ExecProvider != nil:
		return pluginCredential(f, cluster)
	case len(config.CertData) > 0:
		return Login{Credential: "client certificate of the kubeconfig", Expiry: certificateExpiry(config.CertData)}
	case config.BearerToken != "":
		return Login{Credential: "token of the kubeconfig", Expiry: tokenExpiry(config.BearerToken)}
	}
	return Login{}
}

// pluginCredential looks at what the plugin has just put into its cache.
func pluginCredential(f *factory.Factory, cluster *factory.Cluster) Login {
	saved, err := login.SavedFor(f, cluster)
	if err != nil {
		return Login{Credential: "of the credential plugin " + cluster.REST.ExecProvider.Command}
	}
	found := Login{Endpoint: saved.Endpoint, Credential: "of \"pinniped login\""}
	cached := (&credentialcache.Cache{Path: saved.CredentialCache, Now: f.Now}).Get(saved.CredentialKey)
	if cached == nil {
		return found
	}
	found.Credential, found.Expiry = "token, of \"pinniped login\"", cached.ExpirationTimestamp.Time
	if cached.ClientCertificateData != "" {
		found.Credential = "client certificate, of \"pinniped login\""
	}
	return found
}

func certificateExpiry(text []byte) time.Time {
	block, _ := pem.Decode(text)
	if block == nil {
		return time.Time{}
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return certificate.NotAfter
}

// tokenExpiry returns what a token says about itself, if it is a JWT. The cluster has verified the token, so that it
// is not verified here.
func tokenExpiry(token string) time.Time {
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{
		jose.RS256,
		jose.RS384,
		jose.RS512,
		jose.ES256,
		jose.ES384,
		jose.ES512,
		jose.PS256,
		jose.PS384,
		jose.PS512,
		jose.EdDSA,
	})
	var claims jwt.Claims
	if err != nil || parsed.UnsafeClaimsWithoutVerification(&claims) != nil || claims.Expiry == nil {
		return time.Time{}
	}
	return claims.Expiry.Time()
}
