package getkubeconfig

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/logininfo"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// From is a proxy to fetch the login information from, instead of reading it from a cluster as an administrator.
type From struct {
	URL string
	// Fingerprints are SHA-256 fingerprints of CAs; one of them must verify the proxy. If empty, the CA bundle or the
	// system roots must verify it, or the user confirms the CA.
	Fingerprints []string
	// Roots are the system roots; nil for those of this computer.
	Roots *x509.CertPool
}

func (o *Options) validateFrom() error {
	from := &o.From
	if from.URL == "" {
		if len(from.Fingerprints) > 0 {
			return errors.New("--ca-fingerprint requires --from")
		}
		return nil
	}
	for flag, set := range map[string]bool{
		"no-concierge": o.NoConcierge, "endpoint": o.Endpoint != "", "login bearer": o.Login == LoginBearer,
		"print-login":    o.PrintLogin,
		"concierge-mode": o.Mode != "" && o.Mode != configv1alpha1.FrontendImpersonationProxy,
	} {
		if set {
			return fmt.Errorf("--%s cannot be combined with --from", flag)
		}
	}
	if len(from.Fingerprints) > 0 && len(o.CABundle) > 0 {
		return errors.New("--ca-fingerprint and --ca-bundle cannot be combined")
	}
	if !strings.Contains(from.URL, "://") {
		from.URL = "https://" + from.URL
	}
	from.URL = strings.TrimSuffix(from.URL, "/")
	at, err := url.Parse(from.URL)
	if err != nil || at.Scheme != "https" || at.Hostname() == "" || from.URL != "https://"+at.Host {
		return fmt.Errorf("invalid --from %q: it must look like https://proxy.example.com:8443", from.URL)
	}
	if from.Fingerprints, err = trustbundle.ParseExpected(from.Fingerprints); err != nil {
		return fmt.Errorf("invalid --ca-fingerprint: %w", err)
	}
	return nil
}

// fetch returns the login information of the proxy, from a verified connection.
func (o *Options) fetch(ctx context.Context) (*logininfo.Info, error) {
	at, err := url.Parse(o.From.URL)
	if err != nil {
		return nil, err
	}
	policy := trustbundle.Policy{Now: o.Now, Roots: o.From.Roots}
	roots := o.From.Roots
	if len(o.CABundle) > 0 {
		roots = x509.NewCertPool()
		roots.AppendCertsFromPEM(o.CABundle)
	}
	var info *logininfo.Info
	var chain []*x509.Certificate
	pinned := len(o.From.Fingerprints) > 0
	if !pinned {
		info, chain, err = o.get(ctx, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots})
		var unknown x509.UnknownAuthorityError
		if pinned = errors.As(err, &unknown) && len(o.CABundle) == 0; err != nil && !pinned {
			return nil, err
		}
	}
	if pinned {
		anchor, err := o.chooseCA(ctx, at.Hostname(), policy)
		if err != nil {
			return nil, err
		}
		roots = x509.NewCertPool()
		roots.AddCert(anchor)
		// Read it again: the first response was not verified.
		if info, chain, err = o.get(ctx, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}); err != nil {
			return nil, err
		}
	}
	o.Progress.Done("fetched login settings from %s", o.From.URL)
	if !sameOrigin(info.Endpoint, o.From.URL) {
		return nil, ui.WithHint(
			fmt.Errorf("fetching the kubeconfig from %s: the proxy reports its address as %s", o.From.URL, info.Endpoint),
			"if you trust that address, run: pinniped get kubeconfig --from %s", info.Endpoint)
	}
	if len(o.CABundle) > 0 {
		return info, nil
	}
	if err := policy.Verifies(chain, at.Hostname(), info.CABundle); err != nil {
		return nil, ui.WithHint(
			fmt.Errorf("fetching the kubeconfig from %s: the published CA bundle does not verify the proxy's certificate: %w",
				o.From.URL, err), "tell the cluster's administrators, or pass --ca-bundle FILE")
	}
	return info, nil
}

// chooseCA returns the CA to trust for the proxy: one with a given fingerprint, or one that the user confirms. The CA
// verifies the proxy's certificate and name.
func (o *Options) chooseCA(ctx context.Context, host string, policy trustbundle.Policy) (*x509.Certificate, error) {
	// Only the CAs in this response are used, and one of them must be confirmed.
	info, chain, err := o.get(ctx, &tls.Config{
		MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, //nolint:gosec // see above
	})
	if err != nil {
		return nil, err
	}
	candidates, _ := certs.ParseBundle(info.CABundle)
	candidates = append(candidates, chain[1:]...)
	anchors := policy.Anchors(chain, host, candidates)
	if len(anchors) == 0 {
		for _, candidate := range append(candidates, chain[0]) { // find the reason
			err = cmp.Or(err, policy.Verifies(chain, host, trustbundle.PEM(candidate)))
		}
		return nil, discovery.Explain(fmt.Errorf("verifying %s: %w", o.From.URL, err))
	}
	if expected := o.From.Fingerprints; len(expected) > 0 {
		i := slices.IndexFunc(anchors, func(anchor *x509.Certificate) bool {
			return slices.Contains(expected, certs.Fingerprint(anchor.Raw))
		})
		if i < 0 {
			return nil, ui.WithHint(
				fmt.Errorf("verifying %s: its CA is %s, which is not in --ca-fingerprint",
					o.From.URL, trustbundle.Names(anchors)),
				"ask the cluster's administrators for the fingerprint; another server may be between you and the proxy")
		}
		return anchors[i], nil
	}
	name := trustbundle.Name(anchors[0])
	unknown := fmt.Errorf("verifying %s: this computer does not trust its CA: %s", o.From.URL, name)
	const hint = "compare the fingerprint with the one that the cluster's administrators published; if they match, " +
		"pass it with --ca-fingerprint"
	terminal := &ui.Terminal{In: o.In, Out: o.ErrOut}
	if !terminal.Interactive() {
		return nil, ui.WithHint(unknown, hint)
	}
	answer, err := terminal.ReadLine(ctx, fmt.Sprintf(
		"This computer does not trust the CA of %s:\n  %s\nDid the cluster's administrators publish this fingerprint? "+
			"(yes/no) ",
		o.From.URL,
		name,
	))
	if err != nil && !errors.Is(err, io.EOF) { // Ctrl-D means no
		return nil, err
	}
	if strings.TrimSpace(answer) != "yes" {
		return nil, ui.WithHint(unknown, hint)
	}
	return anchors[0], nil
}

// get reads the document, and returns it with the certificates of the connection. It follows no redirect.
func (o *Options) get(ctx context.Context, config *tls.Config) (*logininfo.Info, []*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, DisableKeepAlives: true, DisableCompression: true,
		MaxResponseHeaderBytes: logininfo.MaxSize,
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.From.URL+logininfo.Path, nil)
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("User-Agent", "pinniped")
	request.Header.Set("Accept", "application/json")
	response, err := transport.RoundTrip(request)
	if err != nil {
		err = fmt.Errorf("fetching the kubeconfig from %s: %w", o.From.URL, discovery.WithoutURL(err))
		if discovery.Permanent(err) {
			return nil, nil, discovery.Explain(err)
		}
		return nil, nil, ui.WithHint(err, "check whether this address is reachable from here (DNS, firewall, HTTPS_PROXY)")
	}
	defer func() { _ = response.Body.Close() }()
	switch {
	case response.StatusCode == http.StatusNotFound:
		err = ui.WithHint(errors.New("the proxy offers no kubeconfig"),
			"ask the cluster's administrators to set spec.impersonationProxy.kubeconfig; if it is set, "+
				"\"pinniped ip-tls status\" names the authenticator that is not ready")
	case response.StatusCode != http.StatusOK:
		err = ui.WithHint(fmt.Errorf("the server returned %.60q", response.Status),
			"check that this address belongs to an impersonation proxy with the same pinniped version as this CLI")
	default:
		var info *logininfo.Info
		if info, err = logininfo.Decode(response.Body); err == nil {
			return info, response.TLS.PeerCertificates, nil
		}
		err = cmp.Or(factory.Over(ctx), err) // a truncated response may look complete
	}
	return nil, nil, fmt.Errorf("fetching the kubeconfig from %s: %w", o.From.URL, err)
}

func sameOrigin(a, b string) bool {
	host := func(text string) string {
		at, err := url.Parse(text)
		if err != nil {
			return text
		}
		return net.JoinHostPort(strings.ToLower(at.Hostname()), cmp.Or(at.Port(), "443"))
	}
	return host(a) == host(b)
}

// fetched is a Discoverer for a fetched document, so that the kubeconfig is the same as an administrator's. It leaves
// out the installation: a proxy could name that of another cluster, and replace its entries in a merged kubeconfig.
type fetched struct{ *logininfo.Info }

func (f fetched) CredentialIssuer(context.Context, string) (*configv1alpha1.CredentialIssuer, error) {
	block := &configv1alpha1.KubeconfigSpec{ClusterName: f.ClusterName}
	for _, login := range f.Logins {
		one := configv1alpha1.KubeconfigLogin{
			Name: login.Name, Authenticator: login.Authenticator, RefreshTrustBundle: login.RefreshTrustBundle,
		}
		if login.OIDC != nil {
			one.OIDC = &login.OIDC.KubeconfigOIDC
		}
		block.Logins = append(block.Logins, one)
	}
	return &configv1alpha1.CredentialIssuer{
		ObjectMeta: metav1.ObjectMeta{Name: f.ClusterName},
		Spec: configv1alpha1.CredentialIssuerSpec{
			ImpersonationProxy: &configv1alpha1.ImpersonationProxySpec{Kubeconfig: block},
		},
		Status: configv1alpha1.CredentialIssuerStatus{Strategies: []configv1alpha1.CredentialIssuerStrategy{{
			Type: configv1alpha1.StrategyImpersonationProxy, Status: configv1alpha1.StrategySuccess,
			Frontend: &configv1alpha1.CredentialIssuerFrontend{
				Type: configv1alpha1.FrontendImpersonationProxy,
				ImpersonationProxyInfo: &configv1alpha1.ImpersonationProxyInfo{
					Endpoint: f.Endpoint, CertificateAuthorityData: base64.StdEncoding.EncodeToString(f.CABundle),
				},
			},
		}}},
	}, nil
}

func (f fetched) Authenticator(
	_ context.Context,
	kind discovery.AuthenticatorType,
	name string,
) (*discovery.Authenticator, error) {
	for _, login := range f.Logins {
		found := &discovery.Authenticator{Type: discovery.Webhook, Name: login.Authenticator.Name}
		if o := login.OIDC; o != nil {
			found.Type = discovery.JWT
			found.JWT = &authenticationv1alpha1.JWTAuthenticator{Spec: authenticationv1alpha1.JWTAuthenticatorSpec{
				Issuer: o.Issuer, Audience: o.Audience, TLS: &authenticationv1alpha1.TLSSpec{
					CertificateAuthorityData: base64.StdEncoding.EncodeToString(o.CABundle),
				},
			}}
		}
		if name == found.Name && kind == found.Type {
			return found, nil
		}
	}
	return nil, discovery.ErrNotFound
}

func (f fetched) AuthenticatorCABundle(_ context.Context, tls *authenticationv1alpha1.TLSSpec) ([]byte, error) {
	return base64.StdEncoding.DecodeString(tls.CertificateAuthorityData)
}
