package certs

import (
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// intermediates checks the CA certificates in tls.crt that are above the serving certificate.
func (r *run) intermediates(v verdict) {
	const fix = "get a valid intermediate from the CA, or have the certificate issued by another CA"
	in := related(r.chain)
	for i := 1; i < len(r.chain); i++ {
		cert := r.chain[i]
		if !in[i] || containsCert(r.chain[:i], cert.Certificate) {
			continue
		}
		// Some clients verify by another path, so problems here affect only the others.
		spare := v.err == nil && !v.uses(cert.Certificate)
		add := func(f Finding) {
			if spare && f.Severity == SeverityError {
				f = f.withSeverity(SeverityWarning)
			}
			r.found.add(f)
		}
		for _, f := range slices.Concat(checkWeakKey(cert), r.checkWeakSignature(cert)) {
			add(f)
		}
		below := slices.IndexFunc(r.path, func(p numbered) bool { return p.Equal(cert.Certificate) }) - 1
		for _, problem := range intermediateProblems(cert.Certificate, below, r.Now, r.Skew) {
			add(finding(IntermediateInvalid, fix, "%s %s", cert.where(), problem))
		}
		for _, problem := range constraintProblems(cert.Certificate, r.chain[0].Certificate) {
			add(finding(IntermediateInvalid, constraintsFix, "%s %s", cert.where(), problem))
		}
		if begins := cert.NotBefore; begins.After(r.Now) && !begins.After(r.Now.Add(r.Skew)) {
			add(finding(IntermediateInvalid, "wait until then", "%s is not valid before %s; clients refuse it until then",
				cert.where(), date(begins)).withSeverity(SeverityWarning))
		}
		for _, problem := range intermediateDoubts(cert.Certificate, r.chain[0].Certificate) {
			add(finding(IntermediateInvalid, fix, "%s %s", cert.where(), problem).withSeverity(SeverityWarning))
		}
	}
}

// intermediateProblems lists why a certificate cannot be an issuer. below is the number of CA certificates between it
// and the serving certificate; negative if it is not on the main path.
func intermediateProblems(cert *x509.Certificate, below int, now time.Time, skew time.Duration) []string {
	var problems []string
	_, _, hasUsage := extension(cert, oidKeyUsage)
	switch {
	case cert.Version == 3 && !cert.IsCA:
		problems = append(problems, "issued a certificate, but is not a CA (CA:FALSE)")
	case cert.Version != 3 && !selfIssued(cert):
		problems = append(
			problems,
			fmt.Sprintf("has version %d, which an intermediate CA certificate cannot have", cert.Version),
		)
	case hasUsage && cert.KeyUsage&x509.KeyUsageCertSign == 0:
		problems = append(
			problems,
			fmt.Sprintf("may not sign certificates: its key usage is %s, without keyCertSign", keyUsageNames(cert.KeyUsage)),
		)
	}
	if limit := cert.MaxPathLen; cert.IsCA && (limit > 0 || limit == 0 && cert.MaxPathLenZero) && below > limit {
		problems = append(problems, fmt.Sprintf("allows %d CAs below it (path length), but there are %d", limit, below))
	}
	switch {
	case now.After(cert.NotAfter):
		problems = append(problems, "expired on "+date(cert.NotAfter))
	case cert.NotBefore.After(now.Add(skew)):
		problems = append(problems, "is not valid before "+date(cert.NotBefore))
	}
	if problem := unhandled(cert); problem != "" {
		problems = append(problems, problem)
	}
	usages := cert.ExtKeyUsage
	if len(usages)+len(cert.UnknownExtKeyUsage) > 0 && !slices.Contains(usages, x509.ExtKeyUsageServerAuth) &&
		!slices.Contains(usages, x509.ExtKeyUsageAny) {
		problems = append(
			problems,
			fmt.Sprintf("may not issue certificates for TLS servers: its extended key usage is %s", usageNames(cert)),
		)
	}
	return problems
}

// unhandled describes the critical extension because of which Go rejects a certificate, or returns "".
func unhandled(cert *x509.Certificate) string {
	if len(cert.UnhandledCriticalExtensions) == 0 {
		return ""
	}
	what := cert.UnhandledCriticalExtensions[0].String()
	switch what {
	case "2.5.29.30":
		what += ", name constraints on names other than DNS names, IP addresses, e-mail addresses and URIs"
	case "2.5.29.36":
		what += ", policy constraints"
	case "1.3.6.1.5.5.7.1.24":
		what += ", TLS feature"
	}
	return fmt.Sprintf(
		"has a critical extension that Go programs such as kubectl do not support (%s), so they refuse it",
		what,
	)
}

// intermediateDoubts lists what Go accepts and others reject, and what is probably unintended.
func intermediateDoubts(cert, leaf *x509.Certificate) []string {
	var doubts []string
	if slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageAny) &&
		!slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth) {
		doubts = append(
			doubts,
			"has the extended key usage anyExtendedKeyUsage without serverAuth: Go accepts that, OpenSSL refuses it",
		)
	}
	if len(cert.PermittedDNSDomains) > 0 && len(leaf.IPAddresses) > 0 && len(cert.PermittedIPRanges) == 0 &&
		len(cert.ExcludedIPRanges) == 0 {
		doubts = append(
			doubts,
			"has name constraints for DNS names only, and the serving certificate has IP addresses: the constraints permit "+
				"these, but check that this is intended",
		)
	}
	return doubts
}

// constraintsFix is the hint for a name that name constraints exclude.
const constraintsFix = "have the certificate issued without that name, or by a CA that may issue for it"

// constraintProblems lists the names of the serving certificate that a CA's name constraints exclude, each with the
// constraint.
func constraintProblems(ca, leaf *x509.Certificate) []string {
	const most = 100 // of each kind, to limit the cost of hostile input
	addresses := texts(leaf.IPAddresses[:min(len(leaf.IPAddresses), most)])
	var hosts []string
	for _, uri := range leaf.URIs[:min(len(leaf.URIs), most)] {
		hosts = append(hosts, uri.Hostname())
	}
	var problems []string
	for _, kind := range []struct {
		name                string
		values              []string
		permitted, excluded []string
		within              func(value, constraint string) bool
	}{
		{"DNS name", leaf.DNSNames[:min(len(leaf.DNSNames), most)], ca.PermittedDNSDomains, ca.ExcludedDNSDomains, inDomain},
		{"IP address", addresses, texts(ca.PermittedIPRanges), texts(ca.ExcludedIPRanges), inNetwork},
		{
			"e-mail address", leaf.EmailAddresses[:min(len(leaf.EmailAddresses), most)], ca.PermittedEmailAddresses,
			ca.ExcludedEmailAddresses, mailWithin,
		},
		{"URI with the host", hosts, ca.PermittedURIDomains, ca.ExcludedURIDomains, inURIDomain},
	} {
		for _, value := range kind.values {
			within := func(constraint string) bool { return kind.within(value, constraint) }
			if i := slices.IndexFunc(kind.excluded, within); i >= 0 {
				problems = append(problems, fmt.Sprintf("may not issue for the %s %s: its name constraints exclude %s",
					kind.name, quote(value), quote(kind.excluded[i])))
			} else if len(kind.permitted) > 0 && !slices.ContainsFunc(kind.permitted, within) {
				problems = append(problems, fmt.Sprintf("may not issue for the %s %s: its name constraints permit only %s",
					kind.name, quote(value), joined(quotedAll(kind.permitted))))
			}
		}
	}
	return problems
}

func inNetwork(address, network string) bool {
	_, parsed, err := net.ParseCIDR(network)
	ip := net.ParseIP(address)
	return err == nil && ip != nil && (ip.To4() != nil) == (len(parsed.IP) == net.IPv4len) && parsed.Contains(ip)
}

// mailWithin implements RFC 5280, section 4.2.1.10: a constraint is an address, a host, or, with a leading dot, all
// hosts below it.
func mailWithin(address, constraint string) bool {
	if strings.Contains(constraint, "@") {
		return strings.EqualFold(address, constraint)
	}
	return inURIDomain(address[strings.LastIndex(address, "@")+1:], constraint)
}

// inURIDomain reports whether a host equals the constraint or, if that starts with a dot, is below it.
func inURIDomain(host, constraint string) bool {
	if strings.HasPrefix(constraint, ".") {
		return strings.HasSuffix(strings.ToLower(host), strings.ToLower(constraint))
	}
	return strings.EqualFold(host, constraint)
}

// inDomain implements RFC 5280, section 4.2.1.10: the domain itself and everything below it.
func inDomain(name, domain string) bool {
	name, domain = strings.ToLower(name), strings.ToLower(domain)
	if strings.HasPrefix(domain, ".") {
		return strings.HasSuffix(name, domain) // a wildcard is below the domain as well
	}
	name = strings.TrimPrefix(name, "*.")
	return domain == "" || name == domain || strings.HasSuffix(name, "."+domain)
}
