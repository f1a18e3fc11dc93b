package login

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/url"
	"time"

	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"

	"github.com/pinniped-toolkit/pinniped/internal/credentialcache"
)

// probeTimeout limits the request that tests a credential.
const probeTimeout = 5 * time.Second

// fromCache returns the cached credential, and whether the cluster refuses it. After a 401, kubectl runs its plugin
// again without telling it why. So if a process asks again for the same credential, fromCache tests it at the cluster.
// If the test fails to give a result, the credential counts as valid.
func (p *Plugin) fromCache(
	ctx context.Context,
	cache *credentialcache.Cache,
	key string,
) (cached *clientauthenticationv1beta1.ExecCredentialStatus, refused bool) {
	cached = cache.Get(key)
	if p.Parent == nil || cached == nil || !cache.Asked(key, p.Parent(), cached) {
		return cached, false
	}
	p.debugf("the cached credential was requested again: testing it")
	if refused = p.unauthorized(ctx, cached); refused {
		p.debugf("the cluster rejects the cached credential: getting a new one")
	}
	return cached, refused
}

// unauthorized reports whether the cluster responds with 401 to a request with this credential.
func (p *Plugin) unauthorized(ctx context.Context, credential *clientauthenticationv1beta1.ExecCredentialStatus) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	at := p.cluster()
	if at == nil {
		return false
	}
	var certificates []tls.Certificate
	if credential.ClientCertificateData != "" {
		pair, err := tls.X509KeyPair([]byte(credential.ClientCertificateData), []byte(credential.ClientKeyData))
		if err != nil {
			return true // no server accepts it
		}
		certificates = append(certificates, pair)
	}
	client, err := at.client(certificates...)
	if err != nil {
		return false
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.endpoint.JoinPath("version").String(), nil)
	if err != nil {
		return false
	}
	request.Header.Set("User-Agent", "pinniped")
	if credential.Token != "" {
		request.Header.Set("Authorization", "Bearer "+credential.Token)
	}
	response, err := client.Do(request)
	if err != nil {
		p.debugf("testing the cached credential: %v", err)
		return false
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxResponse))
	return response.StatusCode == http.StatusUnauthorized
}

// cluster returns the endpoint to which kubectl sends the credential, or nil if it is unknown or not verified.
func (p *Plugin) cluster() *exchange {
	cluster := p.info.Spec.Cluster
	if cluster == nil {
		return p.exchange
	}
	endpoint, err := url.Parse(cluster.Server)
	if err != nil || endpoint.Scheme != "https" || cluster.InsecureSkipTLSVerify {
		return nil
	}
	return &exchange{endpoint: endpoint, caBundle: cluster.CertificateAuthorityData, cluster: cluster}
}

// sameCredential reports whether a and b are equal and not nil.
func sameCredential(a, b *clientauthenticationv1beta1.ExecCredentialStatus) bool {
	return a != nil && b != nil && a.Token == b.Token && a.ClientCertificateData == b.ClientCertificateData
}
