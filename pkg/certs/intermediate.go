package certs

import (
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// intermediates judges the CA certificates in tls.crt through which clients will verify.
func (r *run) intermediates(v verdict) {
	const fix = "get a valid intermediate from the CA, or have the certificate issued by another one"
	in := related(r.chain)
	for i := 1; i < len(r.chain); i++ {
		cert := r.chain[i]
		if !in[i] || containsCert(r.chain[:i], cert.Certificate) {
			continue
		}
		// Clients reach the serving certificate by another path, so that what is wrong here hurts only some of them.
		spare := v.err == nil && !v.uses(cert.Certificate)
		add := func(f Finding) {
			if spare && f.Severity == SeverityError {
				f = f.withSeverity(SeverityWarning)
			}
			r.found.add(f)
		}
		for _, f := range slices.Concat(checkWeakKey(cert, "tls.crt"), checkWeakSignature(cert, "tls.crt")) {
			add(f)
		}
		below := slices.IndexFunc(r.path, func(p numbered) bool { return p.Equal(cert.Certificate) }) - 1
		for _, problem := range intermediateProblems(cert.Certificate, below, r.Now, r.Skew) {
			add(finding(IntermediateInvalid, fix, "%s %s", cert.where("tls.crt"), problem))
		}
		for _, problem := range constraintProblems(cert.Certificate, r.chain[0].Certificate) {
			add(finding(IntermediateInvalid, "have the certificate issued by a CA that may issue for these names", "%s %s", cert.where("tls.crt"), problem))
		}
		if begins := cert.NotBefore; begins.After(r.Now) && !begins.After(r.Now.Add(r.Skew)) {
			add(finding(IntermediateInvalid, "wait until then", "%s is not valid before %s; clients refuse it until then",
				cert.where("tls.crt"), date(begins)).withSeverity(SeverityWarning))
		}
		for _, problem := range intermediateDoubts(cert.Certificate, r.chain[0].Certificate) {
			add(finding(IntermediateInvalid, fix, "%s %s", cert.where("tls.crt"), problem).withSeverity(SeverityWarning))
		}
	}
}

// intermediateProblems lists why a certificate may not have issued another. below is how many CA certificates stand
// between it and the serving certificate; negative when it is not on the main path.
func intermediateProblems(cert *x509.Certificate, below int, now time.Time, skew time.Duration) []string {
	var problems []string
	keyUsage, _, _, _ := oids()
	_, _, hasUsage := extension(cert, keyUsage)
	switch {
	case cert.Version == 3 && !cert.IsCA:
		problems = append(problems, "issued a certificate, but is not a CA (CA:FALSE)")
	case cert.Version != 3 && !selfIssued(cert):
		problems = append(problems, fmt.Sprintf("is a certificate of version %d, which cannot be that of an intermediate CA", cert.Version))
	case hasUsage && cert.KeyUsage&x509.KeyUsageCertSign == 0:
		problems = append(problems, fmt.Sprintf("may not sign certificates: its key usage is %s, without keyCertSign", keyUsageNames(cert.KeyUsage)))
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
		problems = append(problems, fmt.Sprintf("may not issue certificates for TLS servers: its extended key usage is %s", usageNames(cert)))
	}
	return problems
}

// unhandled says which critical extension makes Go refuse a certificate; empty when none does.
func unhandled(cert *x509.Certificate) string {
	if len(cert.UnhandledCriticalExtensions) == 0 {
		return ""
	}
	what := cert.UnhandledCriticalExtensions[0].String()
	switch what {
	case "2.5.29.30":
		what += ", name constraints for something else than DNS names, IP addresses, e-mail addresses and URIs"
	case "2.5.29.36":
		what += ", policy constraints"
	case "1.3.6.1.5.5.7.1.24":
		what += ", TLS feature"
	}
	return fmt.Sprintf("has a critical extension that Go programs such as kubectl do not know (%s), so that they refuse it", what)
}

// intermediateDoubts lists what Go lets through and others do not, or what is probably not meant.
func intermediateDoubts(cert, leaf *x509.Certificate) []string {
	var doubts []string
	if slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageAny) && !slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth) {
		doubts = append(doubts, "has the extended key usage anyExtendedKeyUsage without serverAuth: Go accepts that, OpenSSL refuses it")
	}
	if len(cert.PermittedDNSDomains) > 0 && len(leaf.IPAddresses) > 0 && len(cert.PermittedIPRanges) == 0 && len(cert.ExcludedIPRanges) == 0 {
		doubts = append(doubts, "is limited to DNS names by its name constraints, and the serving certificate has IP addresses: nothing forbids them, but it was hardly meant so")
	}
	return doubts
}

// constraintProblems lists the names of the serving certificate that a CA's name constraints forbid.
func constraintProblems(ca, leaf *x509.Certificate) []string {
	var problems []string
	forbid := func(what, name string) {
		problems = append(problems, fmt.Sprintf("may not issue for the %s %s: its name constraints forbid it", what, quote(name)))
	}
	const most = 100 // of each kind: constraints times names must not take long on hostile input
	permittedDNS, excludedDNS := ca.PermittedDNSDomains, ca.ExcludedDNSDomains
	for _, name := range leaf.DNSNames[:min(len(leaf.DNSNames), most)] {
		within := func(domain string) bool { return inDomain(name, domain) }
		if slices.ContainsFunc(excludedDNS, within) || len(permittedDNS) > 0 && !slices.ContainsFunc(permittedDNS, within) {
			forbid("DNS name", name)
		}
	}
	for _, ip := range leaf.IPAddresses[:min(len(leaf.IPAddresses), most)] {
		within := func(network *net.IPNet) bool { return len(network.IP) == len(ip) && network.Contains(ip) }
		if slices.ContainsFunc(ca.ExcludedIPRanges, within) || len(ca.PermittedIPRanges) > 0 && !slices.ContainsFunc(ca.PermittedIPRanges, within) {
			forbid("IP address", ip.String())
		}
	}
	return problems
}

// inDomain applies RFC 5280, section 4.2.1.10: the domain itself and everything below it.
func inDomain(name, domain string) bool {
	name, domain = strings.ToLower(name), strings.ToLower(domain)
	if strings.HasPrefix(domain, ".") {
		return strings.HasSuffix(name, domain) // a wildcard stands for what is below, which is meant here
	}
	name = strings.TrimPrefix(name, "*.")
	return domain == "" || name == domain || strings.HasSuffix(name, "."+domain)
}
