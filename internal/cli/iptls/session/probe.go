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
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Network is how the commands look at an endpoint from here.
type Network interface {
	// Resolve returns the addresses of a host; an IP address is its own.
	Resolve(ctx context.Context, host string) ([]netip.Addr, error)
	// Asked sends a request without credentials to an address. It returns the certificates that the server
	// presents, leaf first and not verified, and the HTTP status of the response. With an error there is no response; the
	// certificates are there when the TLS handshake was done.
	Asked(ctx context.Context, address, serverName string) (chain []*x509.Certificate, status int, err error)
}

// Met is what a client meets at one address.
type Met struct {
	certs.Served
	// Status is the HTTP status of the answer to a request without credentials; zero when there was none.
	Status int
}

// Silent says whether clients that verify the certificate get no answer anyway: the API server behind the proxy
// cannot be reached, for example.
func (m *Met) Silent() bool {
	return len(m.Chain) > 0 && (m.Err != nil || m.Status >= http.StatusInternalServerError)
}

// RealNetwork connects, through the proxy of HTTPS_PROXY and NO_PROXY when there is one.
type RealNetwork struct{}

// probeTimeout bounds one attempt at one address.
const probeTimeout = 5 * time.Second

// answerTimeout bounds the request after the handshake. A user whose requests take longer has an outage.
const answerTimeout = 2 * time.Second

// askedPath is what is asked for without credentials. The proxy sends it on to the API server, unless that admits
// nobody without credentials: then the proxy answers 401 by itself.
const askedPath = "/healthz"

// Resolve asks the resolver of this machine.
func (RealNetwork) Resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// forwarderTo returns the HTTP proxy that connections to a host go through, nil without one.
func forwarderTo(host, port string) (*url.URL, error) {
	return http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}})
}

// Asked does a TLS handshake and sends one request.
func (RealNetwork) Asked(ctx context.Context, address, serverName string) (
	chain []*x509.Certificate, status int, err error,
) {
	host, port := strings.TrimSuffix(serverName, "."), portOf(address)
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
			// What is presented is compared with what must be presented, and verified, by certs.CheckServed. A handshake
			// that failed would hide which certificate it was.
			InsecureSkipVerify: true, //nolint:gosec // see above; no credential is sent over this connection
			VerifyConnection: func(state tls.ConnectionState) error {
				handshaken <- state.PeerCertificates
				return nil
			},
		},
		ResponseHeaderTimeout: answerTimeout,
	}
	dialer := &net.Dialer{Timeout: probeTimeout}
	if forwarder != nil && forwarder.Scheme == "https" { // its own certificate is verified
		transport.DialTLSContext = (&tls.Dialer{NetDialer: dialer}).DialContext
	}
	transport.DialContext = func(ctx context.Context, network, target string) (net.Conn, error) {
		if forwarder == nil {
			target = address
		}
		return dialer.DialContext(ctx, network, target)
	}
	endpoint := url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout+answerTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint.JoinPath(askedPath).String(), nil)
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("User-Agent", "pinniped-ip-tls")
	response, err := transport.RoundTrip(request)
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
			err = fmt.Errorf("no response within %s", answerTimeout)
		}
		return chain, 0, fmt.Errorf("a request gets no response: %w", err)
	case forwarder != nil:
		return nil, 0, fmt.Errorf("through the proxy %s of this computer's environment: %w", forwarder.Redacted(), err)
	}
	return nil, 0, err
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address) // it was dialed
	return port
}

// Probe is Ask for the certificates alone: a server that presents one and does not respond is no error.
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

// Ask sends a request to every address of the endpoint, all at once. Addresses of a family that this machine has no
// route to are left out, as long as there are others. An HTTP proxy in between resolves the name, so it counts as one.
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
	if len(met) == 0 {
		return all, nil, nil
	}
	return met, skipped, nil
}

func noRoute(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EADDRNOTAVAIL) ||
		errors.Is(err, syscall.EAFNOSUPPORT)
}
