package session

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
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
}

// RealNetwork dials.
type RealNetwork struct{}

// probeTimeout bounds one attempt at one address.
const probeTimeout = 5 * time.Second

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
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{
		ServerName: strings.TrimSuffix(serverName, "."),
		MinVersion: tls.VersionTLS12,
		// What is presented is compared with what must be presented, and verified, by certs.CheckServed. A handshake
		// that failed would hide which certificate it was.
		InsecureSkipVerify: true, //nolint:gosec // see above; nothing is sent over this connection
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // nothing was sent
	return conn.(*tls.Conn).ConnectionState().PeerCertificates, nil
}

// Probe asks every address of the endpoint, all at once, for its certificate. Addresses of a family that this machine
// has no route to are left out, as long as there are others.
func Probe(ctx context.Context, network Network, at plan.Endpoint) (seen []certs.Served, skipped []string, err error) {
	addresses, err := network.Resolve(ctx, at.Host)
	if err != nil {
		return nil, nil, err
	}
	all := make([]certs.Served, len(addresses))
	var group sync.WaitGroup
	for i, address := range addresses {
		group.Go(func() {
			target := net.JoinHostPort(address.Unmap().String(), at.Port)
			chain, err := network.Presented(ctx, target, at.Host)
			all[i] = certs.Served{Address: target, Chain: chain, Err: err}
		})
	}
	group.Wait()
	for _, one := range all {
		if noRoute(one.Err) {
			skipped = append(skipped, one.Address)
			continue
		}
		seen = append(seen, one)
	}
	if len(seen) == 0 {
		return all, nil, nil
	}
	return seen, skipped, nil
}

func noRoute(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EADDRNOTAVAIL) ||
		errors.Is(err, syscall.EAFNOSUPPORT)
}
