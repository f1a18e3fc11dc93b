package certs

import (
	"crypto/x509"
	"slices"
)

// sooner adds an error if the serving certificate expires within Input.ExpiresWithin. It replaces the finding
// ExpiresSoon in list, the result of checkDates.
func (r *run) sooner(list []Finding) []Finding {
	leaf := r.chain[0].Certificate
	reported := slices.ContainsFunc(list, func(f Finding) bool {
		return f.Code != ClocksDiffer && f.Severity == SeverityError
	})
	if reported || !r.endsSooner(leaf) {
		return list
	}
	list = slices.DeleteFunc(list, func(f Finding) bool { return f.Code == ExpiresSoon })
	return append(list, r.tooSoon(leaf, "renew it now", "the serving certificate"))
}

// issuersLast reports an error if in every verified chain a CA expires within Input.ExpiresWithin, and names these CA
// certificates.
func (r *run) issuersLast(v verdict) []Finding {
	if v.err != nil || r.anchor.unknown {
		return nil // already reported
	}
	var ending []*x509.Certificate
	for _, chain := range v.chains {
		lasts := true
		for _, ca := range chain[1:] {
			if r.endsSooner(ca) {
				lasts = false
				if !slices.ContainsFunc(ending, ca.Equal) {
					ending = append(ending, ca)
				}
			}
		}
		if lasts {
			return nil
		}
	}
	var list []Finding
	for _, ca := range ending {
		list = append(list, r.tooSoon(ca, "renew the CA's certificate; \"pinniped ip-tls set\" moves clients to another CA "+
			"without an outage", "a CA that clients need"))
	}
	return list
}

func (r *run) endsSooner(cert *x509.Certificate) bool {
	return r.ExpiresWithin > 0 && cert.NotAfter.Before(r.Now.Add(r.ExpiresWithin))
}

func (r *run) tooSoon(cert *x509.Certificate, hint, what string) Finding {
	return finding(ExpiresSoon, hint, "%s (%s) expires on %s, but it must be valid for %s",
		what, subject(cert), date(cert.NotAfter), span(r.Now, r.Now.Add(r.ExpiresWithin))).within(r.Now, cert.NotAfter)
}
