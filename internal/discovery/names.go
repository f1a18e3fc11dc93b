package discovery

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
)

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
func SameServer(
	ctx context.Context,
	resolve func(context.Context, string) ([]netip.Addr, error),
	address string,
) func(host string) (same, known bool) {
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
