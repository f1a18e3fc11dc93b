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

// NewHTTPClient returns a client that connects as cluster says: its TLS server name, its proxy, and whether it verifies
// certificates. A nil cluster means the defaults. An empty CA bundle means the system roots. Requests carry no
// credential, and redirects are not followed.
func NewHTTPClient(cluster *clientcmdapi.Cluster, caBundle []byte) (*http.Client, error) {
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(caBundle) > 0 {
		tlsConfig.RootCAs = x509.NewCertPool()
		tlsConfig.RootCAs.AppendCertsFromPEM(caBundle)
	}
	transport := &http.Transport{
		Proxy:             http.ProxyFromEnvironment,
		TLSClientConfig:   tlsConfig,
		DisableKeepAlives: true, // every try is a new handshake
	}
	if cluster != nil {
		tlsConfig.ServerName = cluster.TLSServerName
		// as the user's own kubeconfig says, and as kubectl will do
		tlsConfig.InsecureSkipVerify = cluster.InsecureSkipTLSVerify
		if cluster.ProxyURL != "" {
			proxy, err := url.Parse(cluster.ProxyURL)
			if err != nil {
				return nil, fmt.Errorf("reading the kubeconfig's proxy-url: %w", err)
			}
			transport.Proxy = http.ProxyURL(proxy)
		}
	}
	return &http.Client{
		Transport:     transport,
		Timeout:       connectTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// Try sends a GET request to address. Every status code below 500 counts as success; 401 and 403 are usual,
// because the request has no credential.
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

// Permanent reports whether err is permanent, so that it is of no use to try again: the server's certificate was not
// accepted, or the server does not speak TLS.
func Permanent(err error) bool {
	var verification *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	return errors.As(err, &verification) || errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch)
}

// Explain adds a hint about what to do to err, the error of a connection whose serving certificate was not accepted.
func Explain(err error) error {
	var expired x509.CertificateInvalidError
	var hostname x509.HostnameError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &hostname):
		return withHint(
			err,
			"the serving certificate is not valid for this host: replace it, or give this command an endpoint with a name "+
				"that it has",
		)
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return withHint(
			err,
			"the serving certificate is expired or not yet valid: renew it, or correct this computer's clock",
		)
	case errors.As(err, &unknown):
		return withHint(
			err,
			"the CA bundle does not verify the serving certificate: publish the right one, or give it to this command",
		)
	}
	return withHint(err, "check which server listens at this address; --skip-validation skips this check")
}

// WithoutURL drops the method and URL that net/http puts in front of an error: ours names the address already.
func WithoutURL(err error) error {
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		return urlErr.Err
	}
	return err
}

// withHint adds a hint to an error and keeps its chain.
func withHint(err error, hint string) error { return &hintedError{err, hint} }

type hintedError struct {
	error
	hint string
}

func (e *hintedError) Unwrap() error { return e.error }
func (e *hintedError) Hint() string  { return e.hint }
