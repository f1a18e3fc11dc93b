package kubeconfig

import (
	"cmp"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Endpoint is a server with all its names.
type Endpoint struct {
	URL string // https://host[:port], as published
	// Names are further names and addresses of the server: HOST or HOST:PORT, by default with the port of URL. A
	// wildcard such as *.example.com, from a certificate, may also cover names of other servers.
	Names []string
	// SameServer, if set, reports whether a host that only a wildcard covers is this server, and whether that is known.
	SameServer func(host string) (same, known bool)
}

// lead says whether an address leads to an endpoint.
type lead int

const (
	leadsElsewhere lead = iota
	leadsHere
	perhapsHere // only a wildcard covers its name
)

// SameEndpoint reports whether clients connect to the same server with both URLs.
func SameEndpoint(a, b string) bool {
	return Endpoint{URL: b}.leads(a, "") == leadsHere
}

// leads says whether server, a URL, leads to the endpoint. serverName is the name that clients expect in the
// certificate, if it is not the host of the URL.
func (e Endpoint) leads(server, serverName string) lead {
	at, ok := parseServer(server)
	if !ok {
		return leadsElsewhere
	}
	here, ok := parseServer(e.URL)
	if ok && at == here {
		return leadsHere
	}
	serverName = canonicalHost(serverName)
	if ok && serverName != "" && serverName == here.host {
		return leadsHere // for example through a tunnel
	}
	if at.path != "" {
		return leadsElsewhere
	}
	best := leadsElsewhere
	for _, name := range e.Names {
		host, port := splitName(name)
		port = cmp.Or(port, here.port)
		suffix, wildcard := strings.CutPrefix(host, "*.")
		switch {
		case wildcard:
			label, rest, found := strings.Cut(at.host, ".")
			if found && label != "" && rest == suffix && at.port == port && best == leadsElsewhere {
				best = e.ask(at.host)
			}
		case at.host == host && at.port == port, serverName != "" && serverName == host:
			return leadsHere
		}
	}
	return best
}

func (e Endpoint) ask(host string) lead {
	if e.SameServer != nil {
		if same, known := e.SameServer(host); known && same {
			return leadsHere
		} else if known {
			return leadsElsewhere
		}
	}
	return perhapsHere
}

// server is the address that a client connects to.
type server struct{ host, port, path string }

func parseServer(text string) (server, bool) {
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil || !strings.EqualFold(u.Scheme, "https") || u.Host == "" {
		return server{}, false
	}
	return server{canonicalHost(u.Hostname()), cmp.Or(u.Port(), "443"), strings.TrimSuffix(u.Path, "/")}, true
}

// splitName parses HOST or HOST:PORT. An IPv6 address with a port must be in brackets.
func splitName(name string) (host, port string) {
	name = strings.TrimSpace(name)
	if _, err := netip.ParseAddr(name); err != nil {
		if host, port, err := net.SplitHostPort(name); err == nil {
			return canonicalHost(host), port
		}
	}
	return canonicalHost(name), ""
}

// canonicalHost returns the canonical form of a DNS name or an IP address.
func canonicalHost(host string) string {
	host = strings.TrimSuffix(strings.ToLower(strings.TrimSpace(host)), ".")
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return addr.Unmap().String()
	}
	return host
}

// Canonical returns the non-empty names of an endpoint in canonical form, sorted and deduplicated.
func Canonical(names []string) []string {
	var all []string
	for _, name := range names {
		host, port := splitName(name)
		if host == "" {
			continue
		}
		if port != "" {
			host = net.JoinHostPort(host, port)
		}
		all = append(all, host)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
