package certs

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Served is what an address of the endpoint presented in a handshake.
type Served struct {
	// Address is the dialed IP address and port.
	Address string
	// Chain is the presented chain, leaf first; empty if the connection failed.
	Chain []*x509.Certificate
	// Err is why there is no chain.
	Err error
}

// Expected is what every address of the endpoint must present.
type Expected struct {
	// SHA256 is the fingerprint of the serving certificate, as in Report.SHA256. If it is empty, any certificate that
	// clients can verify is accepted.
	SHA256 string
	// Host is the DNS name or IP address that clients verify.
	Host string
	// Bundle is the published CA bundle; if it is empty, the system roots are used.
	Bundle []byte
	// Roots replace the system roots; nil means those of this machine.
	Roots *x509.CertPool
	Now   time.Time
}

// CheckServed checks what the endpoint's addresses presented. It returns a finding for each address that does not
// present the expected certificate or that clients cannot verify: EndpointUnreachable, EndpointServesOther, Expired,
// NotYetValid, NameNotCovered or BundleDoesNotVerify. If there is no address, it returns one finding.
func CheckServed(want Expected, seen []Served) []Finding {
	if len(seen) == 0 {
		return []Finding{
			finding(EndpointUnreachable, "add a DNS record for it", "%s resolves to no address", quote(want.Host)),
		}
	}
	members, _ := ParseBundle(want.Bundle)
	pool := x509.NewCertPool()
	for _, member := range members {
		pool.AddCert(member)
	}
	if len(strings.TrimSpace(string(want.Bundle))) == 0 {
		pool = want.Roots // nil means the system roots in x509, too
	}
	found := newFindings(nil)
	for _, served := range seen {
		if code, problem, hint := servedProblem(want, pool, served); problem != "" {
			f := finding(code, hint, "%s %s", clip(served.Address, maxName), problem)
			f.Presented = len(served.Chain) > 0 && want.SHA256 != "" && Fingerprint(served.Chain[0].Raw) == want.SHA256
			found.add(f)
		}
	}
	return found.result()
}

func servedProblem(want Expected, pool *x509.CertPool, served Served) (
	code Code, problem, hint string,
) {
	if served.Err != nil || len(served.Chain) == 0 {
		why := "it presented no certificate"
		if served.Err != nil {
			why = clip(served.Err.Error(), 2*maxName)
		}
		return EndpointUnreachable, "cannot be checked: " + why, "check that clients can reach it (DNS, load balancer, " +
			"firewall)"
	}
	leaf := served.Chain[0]
	presents := "presents the right certificate"
	if want.SHA256 == "" {
		presents = "presents a certificate"
	} else if got := Fingerprint(leaf.Raw); got != want.SHA256 {
		return EndpointServesOther, fmt.Sprintf(
				"presents another certificate: %s, SHA-256 %s, issued by %s, valid until %s",
				subject(leaf),
				got[:16],
				issuer(leaf),
				date(leaf.NotAfter),
			),
			"wait until every replica serves the new certificate; if the problem persists, something in front of the agent " +
				"terminates TLS, or the address belongs to another server"
	}
	intermediates := x509.NewCertPool()
	for _, cert := range served.Chain[1:] {
		intermediates.AddCert(cert)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: intermediates, CurrentTime: want.Now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return refusalOf(leaf, want.Now, presents, err)
	}
	if !covers(leaf, want.Host) {
		return NameNotCovered, fmt.Sprintf("%s, which is not valid for %s", presents, quote(want.Host)), ""
	}
	return "", "", ""
}

// refusalOf says why a certificate does not verify.
func refusalOf(leaf *x509.Certificate, now time.Time, presents string, err error) (code Code, problem, hint string) {
	switch {
	case now.After(leaf.NotAfter):
		return Expired, fmt.Sprintf("%s, which expired on %s", presents, date(leaf.NotAfter)), "have it reissued"
	case now.Before(leaf.NotBefore):
		return NotYetValid, fmt.Sprintf("%s, which is not valid before %s", presents, date(leaf.NotBefore)),
			"wait until then, or check the clocks"
	}
	return BundleDoesNotVerify, presents + ", but the published CA bundle does not verify it: " +
		quote(strings.TrimPrefix(err.Error(), "x509: ")), "check which intermediates the server sends"
}

// CheckLoadBalancerIP warns if the external endpoint's host does not resolve to loadBalancerIP. resolved are the host's
// addresses; if there are none, it returns nothing.
func CheckLoadBalancerIP(loadBalancerIP, host string, resolved []netip.Addr) []Finding {
	wanted, err := netip.ParseAddr(loadBalancerIP)
	if err != nil || len(resolved) == 0 {
		return nil
	}
	if slices.ContainsFunc(resolved, func(a netip.Addr) bool { return a.Unmap() == wanted.Unmap() }) {
		return nil
	}
	addresses := make([]string, len(resolved))
	for i, a := range resolved {
		addresses[i] = a.Unmap().String()
	}
	return []Finding{finding(LoadBalancerIPUnused, "correct the DNS record, or drop loadBalancerIP",
		"%s resolves to %s, not to loadBalancerIP %s", quote(host), joined(addresses), wanted)}
}
