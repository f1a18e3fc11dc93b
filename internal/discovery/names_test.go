package discovery_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

func TestSameServer(t *testing.T) {
	t.Parallel()
	asked := map[string]int{}
	hosts := map[string]string{
		"proxy.example.com": "192.0.2.1",
		"alias.example.com": "::ffff:192.0.2.1",
		"other.example.com": "192.0.2.2",
	}
	resolve := func(_ context.Context, host string) ([]netip.Addr, error) {
		asked[host]++
		if addr, ok := hosts[host]; ok {
			return []netip.Addr{netip.MustParseAddr(addr)}, nil
		}
		return nil, errors.New("no such host")
	}
	same := discovery.SameServer(t.Context(), resolve, "https://proxy.example.com:8443")
	for range 2 {
		for host, want := range map[string][2]bool{
			"alias.example.com": {true, true}, "other.example.com": {false, true}, "gone.example.com": {false, false},
		} {
			if is, known := same(host); is != want[0] || known != want[1] {
				t.Errorf("%s: same %v, known %v", host, is, known)
			}
		}
	}
	for host, times := range asked {
		if times != 1 {
			t.Errorf("%s was asked for %d times", host, times)
		}
	}
	if is, known := discovery.SameServer(
		t.Context(),
		resolve,
		"https://gone.example.com",
	)(
		"alias.example.com",
	); is ||
		known {
		t.Errorf("of a server without an address: same %v, known %v", is, known)
	}
}
