package webhookauthenticator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/controller/authenticators"
)

// ProxyFunc returns the HTTP proxy for a request, as http.ProxyFromEnvironment does.
type ProxyFunc func(*http.Request) (*url.URL, error)

// checkEndpoint returns the URL of the endpoint and whether it is reached through a proxy. The URL is nil if the
// endpoint is invalid.
func checkEndpoint(text string, proxy ProxyFunc) (endpoint *url.URL, proxied bool, condition metav1.Condition) {
	endpoint, err := url.Parse(text)
	if err != nil {
		return nil, false, authenticators.Bad(
			typeEndpoint,
			reasonEndpoint,
			"spec.endpoint URL is invalid: "+authenticators.DescribeURLError(err),
		)
	}
	if endpoint.Scheme != "https" {
		return nil, false, authenticators.Bad(typeEndpoint, reasonEndpointScheme,
			fmt.Sprintf("spec.endpoint URL %s has invalid scheme, require 'https'", endpoint.Redacted()))
	}
	if endpoint.Hostname() == "" {
		return nil, false, authenticators.Bad(typeEndpoint, reasonEndpoint, "spec.endpoint URL is invalid: it has no host")
	}
	if proxy != nil {
		via, err := proxy(&http.Request{URL: endpoint})
		if err != nil {
			return nil, false, authenticators.Bad(
				typeEndpoint,
				reasonEndpointProxy,
				"spec.endpoint URL error: unable to determine if HTTPS_PROXY applies to it",
			)
		}
		proxied = via != nil
	}
	return endpoint, proxied, authenticators.Good(typeEndpoint, messageEndpoint)
}

// address returns HOST:PORT of an endpoint.
func address(endpoint *url.URL) string {
	port := endpoint.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(endpoint.Hostname(), port)
}

const probeTimeout = 10 * time.Second

// Dial makes a TLS connection, sends nothing, and closes it.
func Dial(ctx context.Context, address string, roots *x509.CertPool) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	config := authenticator.TLSConfig(roots)
	config.NextProtos = []string{"h2", "http/1.1"}
	connection, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	_ = connection.Close() // nothing was sent
	return nil
}
