package whoami

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"slices"
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

// strategyTimeout limits the read of the CredentialIssuers, which most users may not read.
const strategyTimeout = 5 * time.Second

// describe finds the user's login in the kubeconfig, the credential cache, and the cluster if it permits that.
func describe(ctx context.Context, f *factory.Factory, cluster *factory.Cluster, client *discovery.Client) Login {
	found := credentialOf(f, cluster)
	ctx, cancel := context.WithTimeout(ctx, strategyTimeout)
	defer cancel()
	issuers, err := client.CredentialIssuers(ctx)
	if err != nil {
		return found.Login
	}
	found.Strategy = strings.Join(found.strategies(issuers, cluster.Source.Cluster.Server), " or ")
	return found.Login
}

// credential is the credential that was sent to the cluster.
type credential struct {
	Login
	exchanged bool   // "pinniped login" exchanged a token for it
	asked     string // requested strategy; empty for the cluster's choice
	kind      kind
}

// kind is the kind of a credential.
type kind int

const (
	unknownKind kind = iota
	certificateKind
	tokenKind
)

// strategies returns the strategies at server that may have accepted the credential. The impersonation proxy accepts
// any credential. The API server may offer several strategies, and accepts credentials that are not the agent's.
func (c *credential) strategies(issuers []configv1alpha1.CredentialIssuer, server string) []string {
	var names []string
	for i := range issuers {
		for j := range issuers[i].Status.Strategies {
			strategy := &issuers[i].Status.Strategies[j]
			name := string(strategy.Type)
			if isAt(strategy, server) && c.mayBeOf(strategy) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// mayBeOf reports whether a strategy with its frontend at the server may have issued the credential.
func (c *credential) mayBeOf(strategy *configv1alpha1.CredentialIssuerStrategy) bool {
	givesTokens := strategy.Type == configv1alpha1.StrategyServiceAccountToken
	switch {
	case strategy.Frontend.ImpersonationProxyInfo != nil:
		return true
	case !c.exchanged:
		return false
	case c.asked != "":
		return c.asked == string(strategy.Type)
	case c.kind == unknownKind:
		return true
	}
	return givesTokens == (c.kind == tokenKind)
}

// isAt reports whether a strategy works and its frontend is at server.
func isAt(strategy *configv1alpha1.CredentialIssuerStrategy, server string) bool {
	if strategy.Status != configv1alpha1.StrategySuccess || strategy.Frontend == nil {
		return false
	}
	at := ""
	if info := strategy.Frontend.ImpersonationProxyInfo; info != nil {
		at = info.Endpoint
	}
	if info := strategy.Frontend.TokenCredentialRequestAPIInfo; info != nil {
		at = info.Server
	}
	return strings.TrimRight(at, "/") == strings.TrimRight(server, "/")
}

func credentialOf(f *factory.Factory, cluster *factory.Cluster) *credential {
	config := cluster.REST
	switch {
	case config.ExecProvider != nil:
		return pluginCredential(f, cluster)
	case len(config.CertData) > 0:
		return &credential{
			Login: Login{Credential: "client certificate of the kubeconfig", Expiry: certificateExpiry(config.CertData)},
			kind:  certificateKind,
		}
	case config.BearerToken != "":
		return &credential{
			Login: Login{Credential: "token of the kubeconfig", Expiry: tokenExpiry(config.BearerToken)}, kind: tokenKind,
		}
	}
	return &credential{}
}

// pluginCredential reads the credential that the plugin has just cached.
func pluginCredential(f *factory.Factory, cluster *factory.Cluster) *credential {
	saved, err := login.SavedFor(f, cluster)
	if err != nil {
		return &credential{Login: Login{Credential: "from the credential plugin " + cluster.REST.ExecProvider.Command}}
	}
	found := &credential{
		Login:     Login{Endpoint: saved.Endpoint, Credential: "of \"pinniped login\""},
		exchanged: saved.Endpoint != "", asked: saved.Strategy,
	}
	cached := (&credentialcache.Cache{Path: saved.CredentialCache, Now: f.Now}).Get(saved.CredentialKey)
	if cached == nil {
		return found
	}
	found.Credential, found.Expiry, found.kind = "token from \"pinniped login\"", cached.ExpirationTimestamp.Time, tokenKind
	if cached.ClientCertificateData != "" {
		found.Credential, found.kind = "client certificate from \"pinniped login\"", certificateKind
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

// tokenExpiry returns the expiry of a token, if it is a JWT. It does not verify the token: the cluster has done so.
func tokenExpiry(token string) time.Time {
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512,
		jose.PS256, jose.PS384, jose.PS512, jose.EdDSA,
	})
	var claims jwt.Claims
	if err != nil || parsed.UnsafeClaimsWithoutVerification(&claims) != nil || claims.Expiry == nil {
		return time.Time{}
	}
	return claims.Expiry.Time()
}
