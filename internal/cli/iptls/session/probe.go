package session

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Network probes an endpoint from this machine.
type Network interface {
	// Resolve returns the addresses of a host. For an IP address it returns that.
	Resolve(ctx context.Context, host string) ([]netip.Addr, error)
	// Asked sends a request without credentials to an address. It returns the server's certificates, leaf first and not
	// verified, and the HTTP status of the response. If only the response fails, chain is set as well as err.
	Asked(ctx context.Context, address, serverName string) (chain []*x509.Certificate, status int, err error)
}

// Met is what a client gets at one address.
type Met struct {
	certs.Served
	// Status is the HTTP status of a request without credentials; zero if there was no response.
	Status int
}

// Silent reports a certificate without a response, for example because the proxy cannot reach the API server.
func (m *Met) Silent() bool {
	return len(m.Chain) > 0 && (m.Err != nil || m.Status >= http.StatusInternalServerError)
}

// RealNetwork connects to the network, through the proxy of HTTPS_PROXY and NO_PROXY if there is one.
type RealNetwork struct{}

// probeTimeout limits one attempt at one address.
const probeTimeout = 5 * time.Second

// responseTimeout limits the request after the handshake. Slower responses count as an outage.
const responseTimeout = 2 * time.Second

// askedPath is requested without credentials. The proxy forwards it to the API server, or responds with 401 itself if
// the API server does not permit anonymous requests.
const askedPath = "/healthz"

// Resolve uses the resolver of this machine.
func (RealNetwork) Resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return discovery.Resolve(ctx, host)
}

// forwarderTo returns the HTTP proxy for connections to a host, or nil.
func forwarderTo(host, port string) (*url.URL, error) {
	return http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}})
}

// Asked makes a TLS handshake and sends one request.
func (RealNetwork) Asked(ctx context.Context, address, serverName string) ([]*x509.Certificate, int, error) {
	host := strings.TrimSuffix(serverName, ".")
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, 0, err
	}
	forwarder, err := forwarderTo(host, port)
	if err != nil {
		return nil, 0, err
	}
	handshaken := make(chan []*x509.Certificate, 1)
	transport := &http.Transport{
		Proxy: http.ProxyURL(forwarder), DisableKeepAlives: true, TLSHandshakeTimeout: probeTimeout,
		TLSClientConfig: &tls.Config{
			ServerName: host,
			MinVersion: tls.VersionTLS12,
			// certs.CheckServed compares and verifies the certificate. A failed handshake would hide which one it is.
			InsecureSkipVerify: true, //nolint:gosec // see above; the request has no credential
			VerifyConnection: func(state tls.ConnectionState) error {
				handshaken <- state.PeerCertificates
				return nil
			},
		},
		ResponseHeaderTimeout: responseTimeout,
	}
	dialer := &net.Dialer{Timeout: probeTimeout}
	if forwarder != nil && forwarder.Scheme == "https" { // verify the forwarder's own certificate
		transport.DialTLSContext = (&tls.Dialer{NetDialer: dialer}).DialContext
	}
	transport.DialContext = func(ctx context.Context, network, target string) (net.Conn, error) {
		if forwarder == nil {
			target = address
		}
		return dialer.DialContext(ctx, network, target)
	}
	endpoint := url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout+responseTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint.JoinPath(askedPath).String(), nil)
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("User-Agent", "pinniped-ip-tls")
	response, err := transport.RoundTrip(request)
	var chain []*x509.Certificate
	select {
	case chain = <-handshaken:
	default:
	}
	switch {
	case err == nil:
		_ = response.Body.Close()
		return chain, response.StatusCode, nil
	case chain != nil:
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			err = fmt.Errorf("no response within %s", responseTimeout)
		}
		return chain, 0, fmt.Errorf("a request gets no response: %w", err)
	case forwarder != nil:
		return nil, 0, fmt.Errorf("connecting through the HTTP proxy %s (from this computer's environment): %w",
			forwarder.Redacted(), err)
	}
	return nil, 0, err
}

// Probe is like Ask, but a server that presents a certificate and does not respond is no error.
func Probe(ctx context.Context, network Network, at plan.Endpoint) (seen []certs.Served, skipped []string, err error) {
	met, skipped, err := Ask(ctx, network, at)
	for _, one := range met {
		if len(one.Chain) > 0 {
			one.Err = nil
		}
		seen = append(seen, one.Served)
	}
	return seen, skipped, err
}

// Ask sends a request to every address of the endpoint concurrently. It skips addresses without a route from this
// machine. An HTTP proxy resolves the name itself and counts as one address.
func Ask(ctx context.Context, network Network, at plan.Endpoint) (met []Met, skipped []string, err error) {
	targets := []string{net.JoinHostPort(at.Host, at.Port)}
	forwarder, err := forwarderTo(at.Host, at.Port)
	if err == nil && forwarder == nil {
		var addresses []netip.Addr
		addresses, err = network.Resolve(ctx, at.Host)
		targets = nil
		for _, address := range addresses {
			targets = append(targets, net.JoinHostPort(address.Unmap().String(), at.Port))
		}
	}
	if err != nil {
		return nil, nil, err
	}
	all := make([]Met, len(targets))
	var group sync.WaitGroup
	for i, target := range targets {
		group.Go(func() {
			chain, status, err := network.Asked(ctx, target, at.Host)
			all[i] = Met{Served: certs.Served{Address: target, Chain: chain, Err: err}, Status: status}
		})
	}
	group.Wait()
	for _, one := range all {
		if noRoute(one.Err) {
			skipped = append(skipped, one.Address)
			continue
		}
		met = append(met, one)
	}
	return met, skipped, nil
}

// noRoute is true when this machine has no route to an address, as to IPv6 addresses from many networks.
func noRoute(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EADDRNOTAVAIL) ||
		errors.Is(err, syscall.EAFNOSUPPORT)
}
