package session

import (
	"bufio"
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
	// Presented returns the certificates that a TLS server presents, leaf first. It verifies nothing.
	Presented(ctx context.Context, address, serverName string) ([]*x509.Certificate, error)
	// Asked does the same handshake and sends a request without credentials. It returns the HTTP status of the answer.
	// With an error there is no answer; the certificates are there when the handshake was done.
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

// RealNetwork dials.
type RealNetwork struct{}

// probeTimeout bounds one attempt at one address.
const probeTimeout = 5 * time.Second

// answerTimeout bounds the request after the handshake. A user whose requests take longer has an outage.
const answerTimeout = 2 * time.Second

// askedPath is what is asked for without credentials. The proxy sends it on to the API server, unless that admits nobody
// without credentials: then the proxy answers 401 by itself.
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

// Presented does a TLS handshake and ends the connection.
func (RealNetwork) Presented(ctx context.Context, address, serverName string) ([]*x509.Certificate, error) {
	conn, err := handshake(ctx, address, serverName)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // nothing was sent
	return conn.ConnectionState().PeerCertificates, nil
}

// Asked does a TLS handshake and sends one request.
func (RealNetwork) Asked(ctx context.Context, address, serverName string) (
	chain []*x509.Certificate, status int, err error,
) {
	conn, err := handshake(ctx, address, serverName)
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close() //nolint:errcheck // the answer is there or not
	chain = conn.ConnectionState().PeerCertificates
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	host := url.URL{Scheme: "https", Host: net.JoinHostPort(strings.TrimSuffix(serverName, "."), portOf(address))}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, host.JoinPath(askedPath).String(), nil)
	if err != nil {
		return chain, 0, err
	}
	request.Close = true
	request.Header.Set("User-Agent", "pinniped-ip-tls")
	if err = request.Write(conn); err == nil {
		var response *http.Response
		if response, err = http.ReadResponse(bufio.NewReader(conn), request); err == nil {
			_ = response.Body.Close()
			return chain, response.StatusCode, nil
		}
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer within %s", answerTimeout)
	}
	return chain, 0, fmt.Errorf("a request is not answered: %w", err)
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address) // it was dialed
	return port
}

func handshake(ctx context.Context, address, serverName string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{
		ServerName: strings.TrimSuffix(serverName, "."),
		MinVersion: tls.VersionTLS12,
		// What is presented is compared with what must be presented, and verified, by certs.CheckServed. A handshake
		// that failed would hide which certificate it was.
		InsecureSkipVerify: true, //nolint:gosec // see above; no credential is sent over this connection
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// Probe asks every address of the endpoint, all at once, for its certificate. Addresses of a family that this machine
// has no route to are left out, as long as there are others.
func Probe(ctx context.Context, network Network, at plan.Endpoint) (seen []certs.Served, skipped []string, err error) {
	met, skipped, err := atAddresses(ctx, network, at, func(address string) (chain []*x509.Certificate, _ int, err error) {
		chain, err = network.Presented(ctx, address, at.Host)
		return chain, 0, err
	})
	for _, one := range met {
		seen = append(seen, one.Served)
	}
	return seen, skipped, err
}

// Ask is Probe with a request to every address.
func Ask(ctx context.Context, network Network, at plan.Endpoint) (met []Met, skipped []string, err error) {
	return atAddresses(ctx, network, at, func(address string) ([]*x509.Certificate, int, error) {
		return network.Asked(ctx, address, at.Host)
	})
}

func atAddresses(ctx context.Context, network Network, at plan.Endpoint,
	ask func(address string) ([]*x509.Certificate, int, error),
) (met []Met, skipped []string, err error) {
	addresses, err := network.Resolve(ctx, at.Host)
	if err != nil {
		return nil, nil, err
	}
	all := make([]Met, len(addresses))
	var group sync.WaitGroup
	for i, address := range addresses {
		group.Go(func() {
			target := net.JoinHostPort(address.Unmap().String(), at.Port)
			chain, status, err := ask(target)
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
