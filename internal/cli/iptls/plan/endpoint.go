package plan

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Endpoint is the endpoint for clients.
type Endpoint struct {
	URL  string
	Host string // without brackets
	Port string
}

// ParseEndpoint parses an endpoint as in the status: https://host[:port].
func ParseEndpoint(text string) (Endpoint, error) {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Scheme != "https" || parsed.Hostname() == "" {
		return Endpoint{}, fmt.Errorf("the published endpoint %.100q is not an https URL", text)
	}
	port := parsed.Port()
	if port == "" {
		port = "443"
	}
	return Endpoint{URL: text, Host: parsed.Hostname(), Port: port}, nil
}

func wrongEndpoint(at Endpoint, external string) string {
	if external == "" {
		return ""
	}
	host, port, err := certs.ParseEndpoint(external)
	if err != nil {
		return ""
	}
	if port == "" {
		port = "443"
	}
	if !SameHost(host, at.Host) || port != at.Port {
		return fmt.Sprintf("the agent still publishes the endpoint %s", at.URL)
	}
	return ""
}

// SameHost reports whether two hosts are the same DNS name or IP address.
func SameHost(a, b string) bool {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	if errX == nil && errY == nil {
		return x.Unmap() == y.Unmap()
	}
	return strings.EqualFold(a, b)
}

func (e Endpoint) String() string { return net.JoinHostPort(e.Host, e.Port) }
