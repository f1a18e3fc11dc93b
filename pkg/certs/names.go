package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// ParseEndpoint parses spec.impersonationProxy.externalEndpoint: HOST or HOST:PORT, where HOST is a DNS name, an IPv4
// address or an IPv6 address (in brackets if a port follows). It is not a URL. It returns the host without brackets
// and, if it is not ASCII, as IDNA A-labels; port is empty if absent.
func ParseEndpoint(endpoint string) (host, port string, err error) {
	_, host, port, err = splitEndpoint(endpoint)
	return host, port, err
}

// splitEndpoint is ParseEndpoint, but also returns the host as typed, which may not be ASCII.
func splitEndpoint(endpoint string) (typed, host, port string, err error) {
	shown := quote(endpoint)
	switch {
	case endpoint == "":
		return "", "", "", errors.New("the endpoint is empty")
	case strings.Contains(endpoint, "://"):
		return "", "", "", fmt.Errorf("endpoint %s is a URL; write HOST or HOST:PORT only", shown)
	case strings.ContainsAny(endpoint, "/?#@\\"):
		return "", "", "", fmt.Errorf("endpoint %s is more than HOST or HOST:PORT", shown)
	case strings.ContainsFunc(endpoint, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return "", "", "", fmt.Errorf("endpoint %s holds white space or control characters", shown)
	}
	bracketed := false
	typed = endpoint
	if addr, parseErr := netip.ParseAddr(endpoint); parseErr == nil && addr.Is6() {
		bracketed = true
	} else if inner, ok := strings.CutPrefix(endpoint, "["); ok && strings.HasSuffix(inner, "]") {
		typed, bracketed = strings.TrimSuffix(inner, "]"), true
	} else if strings.Contains(endpoint, ":") {
		if typed, port, err = net.SplitHostPort(endpoint); err != nil {
			return "", "", "", fmt.Errorf(
				"endpoint %s is not HOST or HOST:PORT (an IPv6 address with a port needs brackets)",
				shown,
			)
		}
		if err = checkPort(port); err != nil {
			return "", "", "", fmt.Errorf("endpoint %s: %w", shown, err)
		}
		bracketed = strings.HasPrefix(endpoint, "[")
	}
	if host, err = endpointHost(typed, bracketed); err != nil {
		return "", "", "", fmt.Errorf("endpoint %s: %w", shown, err)
	}
	return typed, host, port, nil
}

func checkPort(port string) error {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || port != strconv.FormatUint(n, 10) {
		return fmt.Errorf("port %s is not a number from 1 to 65535", quote(port))
	}
	return nil
}

// endpointHost checks the host. In brackets, it must be an IPv6 address.
func endpointHost(host string, bracketed bool) (string, error) {
	addr, err := netip.ParseAddr(host)
	switch {
	case err == nil && addr.Zone() != "":
		return "", errors.New("an IPv6 zone is valid only on one machine")
	case err == nil && bracketed && !addr.Is6():
		return "", errors.New("only IPv6 addresses use brackets")
	case err == nil && addr.IsUnspecified():
		return "", fmt.Errorf("clients cannot connect to address %s", addr)
	case err == nil:
		return host, nil
	case bracketed:
		return "", fmt.Errorf("%s is not an IPv6 address", quote(host))
	case strings.Contains(host, ":"):
		return "", fmt.Errorf("host %s is not a valid DNS name or IP address", quote(host))
	}
	ascii, err := asciiName(host)
	if err == nil && strings.Contains(ascii, "_") {
		// Certificates may contain such names, but RFC 1123 forbids them for hosts, and Kubernetes rejects them.
		err = errors.New("a host name cannot have underscores")
	}
	if err != nil {
		return "", fmt.Errorf("host %s is not a valid DNS name or IP address: %w", quote(host), err)
	}
	return ascii, nil
}

// asciiName returns a DNS name in ASCII, as in certificates and on the wire, or says why it is invalid.
func asciiName(name string) (string, error) {
	if strings.ContainsFunc(name, func(r rune) bool { return r > 0x7f }) {
		ascii, err := idna.Lookup.ToASCII(name)
		if err != nil {
			return "", errors.New("it is not a valid internationalised name")
		}
		name = ascii
	}
	bare := strings.TrimSuffix(name, ".")
	if bare == "" || len(bare) > 253 {
		return "", errors.New("a DNS name has 1 to 253 characters")
	}
	labels := strings.Split(bare, ".")
	for _, label := range labels {
		if len(label) == 0 || len(label) > 63 {
			return "", errors.New("each part between dots has 1 to 63 characters")
		}
		if label[0] == '-' || label[len(label)-1] == '-' {
			return "", errors.New("no part begins or ends with a hyphen")
		}
		for _, c := range []byte(label) {
			letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
			if digit := c >= '0' && c <= '9'; !letter && !digit && c != '-' && c != '_' {
				return "", errors.New("only letters, digits and hyphens are allowed")
			}
		}
	}
	last := labels[len(labels)-1]
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(strings.ToLower(last), "0x") {
		return "", errors.New(
			"it ends in a number, but is not an IP address (four numbers from 0 to 255, no leading zeros)",
		)
	}
	return name, nil
}

// names checks whether the certificate covers every name that clients use.
func (r *run) names() {
	leaf := r.chain[0]
	names := make([]Name, 0, len(r.Names)+1)
	if r.Endpoint != "" {
		host, _, _, err := splitEndpoint(r.Endpoint)
		if err != nil {
			r.note(EndpointInvalid, "write a DNS name or an IP address, and a port if it is not 443: proxy.example.com:8443",
				"%s is not valid: %s", r.Sources.Endpoint, err)
		} else {
			names = append(names, Name{Value: host, Source: r.Sources.Endpoint})
		}
	}
	for i, name := range slices.Concat(names, r.Names) {
		if i >= len(names) && slices.ContainsFunc(names, func(n Name) bool { return n.Value == name.Value }) {
			continue // already reported for the endpoint
		}
		if trouble, hint := oddlyWritten(name.Value); trouble != "" {
			r.warn(EndpointInvalid, hint, "%s %s", shownName(name), trouble)
		}
	}
	names = append(names, r.Names...)
	if len(leaf.DNSNames) == 0 && len(leaf.IPAddresses) == 0 {
		hint := "have it issued with subject alternative names"
		if len(names) > 0 {
			hint += ": " + joined(quotedNames(names))
		}
		what := "%s has no DNS name and no IP address among its subject alternative names (SANs)"
		if leaf.Subject.CommonName != "" {
			what += "; its common name does not count"
		}
		r.note(NoNames, hint, what, leaf.where())
		return
	}
	seen := map[string]bool{}
	for _, name := range names {
		key := strings.ToLower(name.Value)
		if ascii, err := asciiName(name.Value); err == nil {
			key = strings.ToLower(ascii)
		}
		if name.Value != "" && !seen[key] {
			seen[key] = true
			r.checkName(leaf.Certificate, name)
		}
	}
}

func quotedNames(names []Name) []string {
	quoted := make([]string, 0, len(names))
	for _, name := range names {
		if text := shownName(Name{Value: name.Value}); !slices.Contains(quoted, text) { // one name may have several sources
			quoted = append(quoted, text)
		}
	}
	return quoted
}

// covers reports whether clients accept the certificate for the name.
func covers(leaf *x509.Certificate, name string) bool {
	if addr, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return leaf.VerifyHostname(addr.Unmap().WithZone("").String()) == nil
	}
	ascii, err := asciiName(name)
	return err == nil && leaf.VerifyHostname(ascii) == nil
}

// oddlyWritten says why a name works only for Go programs, and how to write it instead.
func oddlyWritten(name string) (trouble, hint string) {
	addr, err := netip.ParseAddr(strings.Trim(name, "[]"))
	switch {
	case err == nil && addr.Is4In6():
		return "is an IPv4-mapped IPv6 address: clients built on OpenSSL or GnuTLS do not find it in a " +
				"certificate",
			"write " + addr.Unmap().
				String()
	case strings.HasSuffix(name, "."):
		return "ends in a dot: clients built on OpenSSL send the dot in the handshake, which Go servers refuse",
			"remove the trailing dot"
	default:
		return "", ""
	}
}

// shownName formats a name as it was typed, with its ASCII form if different, and its source.
func shownName(name Name) string {
	shown := quote(name.Value)
	var notes []string
	if ascii, err := asciiName(name.Value); err == nil && ascii != name.Value {
		notes = append(notes, "in ASCII "+ascii)
	}
	if name.Source != "" {
		notes = append(notes, clip(name.Source, maxName))
	}
	if len(notes) > 0 {
		shown += " (" + strings.Join(notes, ", ") + ")"
	}
	return shown
}

func (r *run) checkName(leaf *x509.Certificate, name Name) {
	where := shownName(name)
	if covers(leaf, name.Value) {
		if trouble := goOnly(leaf, name.Value); trouble != "" {
			r.warn(NameNotCovered, "have the certificate issued with exactly this name",
				"the serving certificate covers %s only for Go programs such as kubectl: %s", where, trouble)
		}
	} else if name.Advisory {
		r.inform(NameNotCovered, "that is fine unless a client connects with this name",
			"the serving certificate is not valid for %s (new kubeconfigs use another endpoint): %s",
			where, whyNotCovered(leaf, name.Value))
	} else {
		r.note(NameNotCovered, "have the certificate issued for this name too, or change the name that clients use",
			"the serving certificate is not valid for %s: %s", where, whyNotCovered(leaf, name.Value))
	}
}

// whyNotCovered says why the certificate does not cover the name. It explains near misses that are easy to overlook.
func whyNotCovered(leaf *x509.Certificate, name string) string {
	sans := sanList(leaf)
	addr, err := netip.ParseAddr(strings.Trim(name, "[]"))
	if err == nil {
		for _, dns := range leaf.DNSNames {
			if other, err := netip.ParseAddr(dns); err == nil && other.Unmap() == addr.Unmap() {
				return "it has the address as a DNS name, but clients look for it among the IP addresses"
			}
		}
		if len(leaf.IPAddresses) == 0 {
			return "it has no IP address, only " + sans
		}
		return "it has " + sans
	}
	ascii, err := asciiName(name)
	if err != nil {
		return "the name is not a valid DNS name"
	}
	lower := strings.ToLower(strings.TrimSuffix(ascii, "."))
	for _, dns := range leaf.DNSNames {
		if strings.EqualFold(dns, lower+".") {
			return "it has " + quote(dns) + ", with a trailing dot, which no client looks for"
		}
		suffix, wild := strings.CutPrefix(strings.ToLower(dns), "*.")
		if !wild {
			if strings.Contains(dns, "*") {
				return quote(dns) + " is a partial wildcard, which Go programs such as kubectl do not accept"
			}
			continue
		}
		if lower == suffix {
			return "the wildcard " + quote(dns) + " does not cover the parent domain itself"
		}
		if strings.HasSuffix(lower, "."+suffix) {
			return "the wildcard " + quote(dns) + " covers one level only"
		}
	}
	return "it has " + sans
}

func sanList(leaf *x509.Certificate) string {
	var parts []string
	if len(leaf.DNSNames) > 0 {
		parts = append(parts, "DNS names "+joined(quotedAll(leaf.DNSNames)))
	}
	if len(leaf.IPAddresses) > 0 {
		parts = append(parts, "IP addresses "+joined(texts(leaf.IPAddresses)))
	}
	return strings.Join(parts, " and ")
}

// goOnly says why OpenSSL and GnuTLS reject a name that Go accepts.
func goOnly(leaf *x509.Certificate, name string) string {
	if addr, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		if !addr.Unmap().Is4() {
			return ""
		}
		for _, ip := range leaf.IPAddresses {
			if len(ip) == net.IPv4len && ip.Equal(addr.Unmap().AsSlice()) {
				return ""
			}
		}
		return "it has the IPv4 address in its IPv6 form, which OpenSSL does not match"
	}
	ascii, err := asciiName(name)
	if err != nil {
		return ""
	}
	lower := strings.ToLower(strings.TrimSuffix(ascii, "."))
	for _, dns := range leaf.DNSNames {
		dns = strings.ToLower(dns)
		if !strings.HasPrefix(dns, "*.") && dns == lower ||
			strings.HasPrefix(dns, "*.") && strings.Count(dns, ".") > 1 && leafCovers(dns, lower) {
			return ""
		}
	}
	return "the name matches only a wildcard directly below a top-level domain, which OpenSSL does not accept"
}

// leafCovers matches a wildcard against a name: exactly one label, at the front.
func leafCovers(wildcard, name string) bool {
	_, rest, ok := strings.Cut(name, ".")
	return ok && "*."+rest == wildcard
}
