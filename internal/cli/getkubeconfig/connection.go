package getkubeconfig

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

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

const requestTimeout = 10 * time.Second

// newHTTPClient returns a client that connects as cluster says; a nil cluster has no special wishes. An empty CA bundle
// means the system roots. Requests carry no credential, and redirects are not followed.
func newHTTPClient(cluster *clientcmdapi.Cluster, caBundle []byte) (*http.Client, error) {
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
		tlsConfig.InsecureSkipVerify = cluster.InsecureSkipTLSVerify // as the user's own kubeconfig says, and as kubectl will do
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
		Timeout:       requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// tryConnection connects to the cluster of the new kubeconfig as kubectl will, without a credential. What may be a
// cluster that is still coming up is tried again until the timeout; a certificate that does not fit is an error at once.
func (o *Options) tryConnection(ctx context.Context, config *clientcmdapi.Config) error {
	cluster := config.Clusters[config.Contexts[config.CurrentContext].Cluster]
	client, err := newHTTPClient(cluster, cluster.CertificateAuthorityData)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	var task *ui.Task
	defer func() {
		if task != nil {
			task.Stop()
		}
	}()
	var cause error // of the last try that was not cut short
	for {
		err := probe(ctx, client, cluster.Server)
		if err == nil {
			o.Progress.Done("validated connection to the cluster")
			return nil
		}
		if ctx.Err() == nil && certain(err) {
			return explainTLS(fmt.Errorf("validating the connection to %q: %w", cluster.Server, err))
		}
		if ctx.Err() == nil || cause == nil {
			cause = err
		}
		if ctx.Err() != nil {
			return o.gaveUp(ctx, cluster.Server, cause)
		}
		if task == nil {
			task = o.Progress.Start("could not immediately connect to the cluster but it may be initializing, will retry until timeout: %v", err)
		} else {
			task.Update("could not connect to cluster, retrying: %v", err)
		}
		select {
		case <-ctx.Done():
			return o.gaveUp(ctx, cluster.Server, cause)
		case <-time.After(o.PollInterval):
		}
	}
}

func (o *Options) gaveUp(ctx context.Context, server string, cause error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("validating the connection to %q: %w", server, ctx.Err())
	}
	err := fmt.Errorf("validating the connection to %q (--timeout %s): %w: %w", server, o.Timeout, ctx.Err(), cause)
	return ui.WithHint(err, "see whether this address can be reached from here; --skip-validation makes the kubeconfig without trying it")
}

// probe asks for the address itself. Any answer from something that can serve us will do: 401 and 403 are usual.
func probe(ctx context.Context, client *http.Client, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return withoutURL(err)
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16))
	if response.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("unexpected status code %d", response.StatusCode)
	}
	return nil
}

// certain reports whether err cannot go away by waiting: the other end presented a certificate, and it does not fit;
// or it does not speak TLS at all.
func certain(err error) bool {
	var verification *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	return errors.As(err, &verification) || errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch)
}

func explainTLS(err error) error {
	var expired x509.CertificateInvalidError
	var hostname x509.HostnameError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &hostname):
		return ui.WithHint(err, "the serving certificate is not valid for this host: replace it, or give --concierge-endpoint with a name that it has")
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return ui.WithHint(err, "the serving certificate is expired or not yet valid: renew it, or correct this computer's clock")
	case errors.As(err, &unknown):
		return ui.WithHint(err, "the CA bundle does not verify the serving certificate: advertise the right one, or give it with --concierge-ca-bundle")
	}
	return ui.WithHint(err, "look at what answers at this address; --skip-validation makes the kubeconfig all the same")
}

// withoutURL drops the method and URL that net/http puts in front of an error: ours names the address already.
func withoutURL(err error) error {
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		return urlErr.Err
	}
	return err
}
