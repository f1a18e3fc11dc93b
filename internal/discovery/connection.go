package discovery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const connectTimeout = 10 * time.Second

// NewHTTPClient returns a client with the TLS server name, the proxy and the verification of cluster. A nil cluster
// means the defaults. An empty caBundle means the system roots. Requests have no credential, and redirects are not
// followed.
func NewHTTPClient(cluster *clientcmdapi.Cluster, caBundle []byte) (*http.Client, error) {
	transport, err := NewTransport(cluster, caBundle)
	if err != nil {
		return nil, err
	}
	transport.DisableKeepAlives = true // each try is a new handshake
	return &http.Client{Transport: transport, Timeout: connectTimeout, CheckRedirect: NoRedirect}, nil
}

// NoRedirect is a http.Client.CheckRedirect that follows no redirect.
func NoRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// NewTransport returns the transport for NewHTTPClient.
func NewTransport(cluster *clientcmdapi.Cluster, caBundle []byte) (*http.Transport, error) {
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(caBundle) > 0 {
		tlsConfig.RootCAs = x509.NewCertPool()
		tlsConfig.RootCAs.AppendCertsFromPEM(caBundle)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: tlsConfig}
	if cluster != nil {
		tlsConfig.ServerName = cluster.TLSServerName
		// As the user's kubeconfig says; kubectl does the same.
		tlsConfig.InsecureSkipVerify = cluster.InsecureSkipTLSVerify
		if cluster.ProxyURL != "" {
			proxy, err := url.Parse(cluster.ProxyURL)
			if err != nil {
				return nil, fmt.Errorf("reading the kubeconfig's proxy-url: %w", err)
			}
			transport.Proxy = http.ProxyURL(proxy)
		}
	}
	return transport, nil
}

// Try sends a GET request to address. A status code below 500 is success, as 401 and 403 are usual without a
// credential.
func Try(ctx context.Context, client *http.Client, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return WithoutURL(err)
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16))
	if response.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("unexpected status code %d", response.StatusCode)
	}
	return nil
}

// Permanent reports whether a retry cannot help: the server's certificate was not accepted, or it does not speak TLS.
func Permanent(err error) bool {
	var verification *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	return errors.As(err, &verification) || errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch)
}

// Explain adds a hint to err, if the serving certificate of the connection was not accepted.
func Explain(err error) error {
	var expired x509.CertificateInvalidError
	var hostname x509.HostnameError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &hostname):
		return withHint(
			err,
			"the serving certificate is not valid for this host: replace it, or pass an endpoint with a name "+
				"that it covers",
		)
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return withHint(
			err,
			"the serving certificate is expired or not yet valid: renew it, or correct this computer's clock",
		)
	case errors.As(err, &unknown):
		return withHint(
			err,
			"the CA bundle does not verify the serving certificate: publish the correct CA bundle, or pass it to this command",
		)
	}
	return withHint(err, "check which server listens at this address; --skip-validation skips this check")
}

// WithoutURL removes the method and URL that net/http puts before an error; our messages already have the address.
func WithoutURL(err error) error {
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		return urlErr.Err
	}
	return err
}

// withHint wraps an error with a hint.
func withHint(err error, hint string) error { return &hintedError{err, hint} }

type hintedError struct {
	error
	hint string
}

func (e *hintedError) Unwrap() error { return e.error }
func (e *hintedError) Hint() string  { return e.hint }
