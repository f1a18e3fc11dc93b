package session

import (
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

func TestProbe(t *testing.T) {
	t.Parallel()
	four, six := netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::7")
	chain := []*x509.Certificate{{Raw: []byte("x")}}
	unreachable := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}
	at := plan.Endpoint{Host: "proxy.example.com", Port: "8443"}
	n := iptlstest.Network{
		Addresses: []netip.Addr{four, six},
		Chains:    map[string][]*x509.Certificate{"203.0.113.7:8443": chain},
		Errs:      map[string]error{"[2001:db8::7]:8443": unreachable},
	}
	seen, skipped, err := Probe(t.Context(), n, at)
	if err != nil || len(seen) != 1 || seen[0].Address != "203.0.113.7:8443" || len(skipped) != 1 ||
		skipped[0] != "[2001:db8::7]:8443" {
		t.Errorf("without a route to one family: %v, %v, %v", seen, skipped, err)
	}
	n.Chains, n.Errs["203.0.113.7:8443"] = nil, errors.New("refused")
	if seen, skipped, _ = Probe(t.Context(), n, at); len(seen) != 1 || len(skipped) != 1 {
		t.Errorf("with the other one refusing: %v, %v", seen, skipped)
	}
	n.Errs["203.0.113.7:8443"] = unreachable
	if seen, skipped, _ = Probe(t.Context(), n, at); len(seen) != 0 || len(skipped) != 2 {
		t.Errorf("without any route: %v, %v", seen, skipped)
	}
}
