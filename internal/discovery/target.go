package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Reader reads objects of a cluster; *Client implements it.
type Reader interface {
	services
	CredentialIssuer(ctx context.Context, name string) (*configv1alpha1.CredentialIssuer, error)
}

// Resolver returns the addresses of a host.
type Resolver func(ctx context.Context, host string) ([]netip.Addr, error)

// Target returns the proxy with all of its names, and the published CA bundle. An empty name means the only
// CredentialIssuer. The warnings list what could not be read.
func Target(
	ctx context.Context,
	client Reader,
	name string,
	resolve Resolver,
) (target kubeconfig.Target, warnings []string, err error) {
	issuer, err := client.CredentialIssuer(ctx, name)
	if err != nil {
		return target, nil, fmt.Errorf("finding the CredentialIssuer: %w", err)
	}
	frontend, err := ChooseStrategy(issuer, configv1alpha1.FrontendImpersonationProxy)
	if err != nil {
		return target, nil, err
	}
	service, missing, err := FindService(ctx, client, issuer, "")
	if err != nil {
		err = fmt.Errorf("reading the Service in front of the impersonation proxy: %w", err)
	}
	switch {
	case errors.Is(err, ErrForbidden):
		warnings = append(warnings, err.Error()+"; kubeconfigs that use one of its addresses are not found")
		err = nil
	case missing != "":
		warnings = append(warnings, missing+": kubeconfigs that use one of these addresses are not found")
	}
	if frontend.Trouble != "" {
		warnings = append(warnings, "the configuration of the impersonation proxy is not in effect ("+frontend.Trouble+
			"), so this command uses the proxy's current endpoint and CA bundle")
	}
	target.CABundle = frontend.CABundle
	if err != nil {
		return target, warnings, err
	}
	target.Endpoint = Endpoint(issuer, service, frontend.Endpoint)
	target.SameServer = SameServer(ctx, resolve, frontend.Endpoint)
	if len(target.CABundle) > 0 {
		if _, err := kubeconfig.CountCertificates(target.CABundle); err != nil {
			return target, warnings, fmt.Errorf("checking the CA bundle: %w", err)
		}
	}
	return target, warnings, nil
}

// Resolve returns the addresses of a host from the local resolver. If host is an IP address, it returns that.
func Resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// SameServer returns a function that compares a host with the host of the URL address. same is true if both resolve to
// a common IP address; known is false if one of them does not resolve. Each host is resolved once. The function is safe
// for concurrent use.
func SameServer(ctx context.Context, resolve Resolver, address string) func(host string) (same, known bool) {
	var mu sync.Mutex
	known := map[string][]netip.Addr{}
	addresses := func(host string) []netip.Addr {
		mu.Lock()
		defer mu.Unlock()
		found, done := known[host]
		if !done {
			all, _ := resolve(ctx, host) // an error means not known
			for _, addr := range all {
				found = append(found, addr.Unmap())
			}
			known[host] = found
		}
		return found
	}
	return func(host string) (same, known bool) {
		u, err := url.Parse(address)
		if err != nil {
			return false, false
		}
		server, others := addresses(u.Hostname()), addresses(host)
		if len(server) == 0 || len(others) == 0 {
			return false, false
		}
		return slices.ContainsFunc(server, func(addr netip.Addr) bool { return slices.Contains(others, addr) }), true
	}
}
