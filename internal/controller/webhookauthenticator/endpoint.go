package webhookauthenticator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
)

// ProxyFunc tells the HTTP proxy for a request, as http.ProxyFromEnvironment does.
type ProxyFunc func(*http.Request) (*url.URL, error)

// checkEndpoint returns the endpoint's URL, and whether a proxy stands before it. Without a URL the endpoint is not usable.
func checkEndpoint(text string, proxy ProxyFunc) (endpoint *url.URL, proxied bool, condition metav1.Condition) {
	endpoint, err := url.Parse(text)
	if err != nil {
		var parsing *url.Error
		if errors.As(err, &parsing) { // whose text would repeat the URL, with what password may be in it
			err = parsing.Err
		}
		return nil, false, bad(typeEndpoint, reasonEndpoint, "spec.endpoint URL is invalid: "+err.Error())
	}
	if endpoint.Scheme != "https" {
		return nil, false, bad(typeEndpoint, reasonEndpointScheme,
			fmt.Sprintf("spec.endpoint URL %s has invalid scheme, require 'https'", endpoint.Redacted()))
	}
	if endpoint.Hostname() == "" {
		return nil, false, bad(typeEndpoint, reasonEndpoint, "spec.endpoint URL is invalid: it has no host")
	}
	if proxy != nil {
		via, err := proxy(&http.Request{URL: endpoint})
		if err != nil {
			return nil, false, bad(typeEndpoint, reasonEndpointProxy, "spec.endpoint URL error: unable to determine if HTTPS_PROXY applies to it")
		}
		proxied = via != nil
	}
	return endpoint, proxied, good(typeEndpoint, messageEndpoint)
}

// address is where to dial for an endpoint.
func address(endpoint *url.URL) string {
	port := endpoint.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(endpoint.Hostname(), port)
}

const probeTimeout = 10 * time.Second

// Dial is the real probe: it makes a TLS connection, asks nothing, and closes it.
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

// describe words a failed probe so that the same failure has the same text each time: the status is only written when it changes.
func describe(err error) string {
	var expired x509.CertificateInvalidError
	if errors.As(err, &expired) && expired.Reason == x509.Expired && expired.Cert != nil {
		return fmt.Sprintf("the server's certificate is valid from %s to %s",
			expired.Cert.NotBefore.UTC().Format(time.RFC3339), expired.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	var operation *net.OpError
	if errors.As(err, &operation) && operation.Source != nil {
		stable := *operation
		stable.Source = nil // a port that is another one each time
		err = &stable
	}
	const limit = 1000
	text := err.Error()
	if len(text) > limit {
		text = text[:limit] + "…"
	}
	return text
}
