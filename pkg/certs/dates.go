package certs

import (
	"crypto/x509"
	"slices"
	"time"
)

// checkDates checks the validity of the serving certificate by this machine's clock and, if known, the API server's.
func checkDates(leaf *x509.Certificate, now, server time.Time, skew time.Duration) []Finding {
	var list []Finding
	clocks := []struct {
		name string
		at   time.Time
	}{{"", now}}
	if !server.IsZero() {
		if apart := server.Sub(now).Abs(); apart > skew && apart > 0 {
			list = append(list, finding(
				ClocksDiffer,
				"synchronize both clocks with NTP",
				"the clocks differ by %s: this machine's clock reads %s, and the API server's reads %s",
				span(now, server),
				date(now),
				date(server),
			))
			clocks[0].name = " by this machine's clock"
			clocks = append(clocks, struct {
				name string
				at   time.Time
			}{" by the API server's clock", server})
		}
	}
	var worst []Finding // of the two clocks
	for _, clock := range clocks {
		f := dateFindings(leaf, clock.at, skew, clock.name)
		if len(f) > 0 && (len(worst) == 0 || f[0].Severity > worst[0].Severity) {
			worst = f
		}
	}
	return append(list, worst...)
}

func dateFindings(leaf *x509.Certificate, now time.Time, skew time.Duration, clock string) []Finding {
	const reissue = "have the certificate reissued"
	if leaf.NotAfter.Before(leaf.NotBefore) {
		return []Finding{
			finding(Expired, reissue, "the serving certificate is never valid: its validity ends (%s) before it begins (%s)",
				date(leaf.NotAfter), date(leaf.NotBefore)),
		}
	}
	switch {
	case now.After(leaf.NotAfter):
		return []Finding{
			finding(Expired, reissue, "the serving certificate expired on %s%s", date(leaf.NotAfter), clock).
				ago(now, leaf.NotAfter),
		}
	case leaf.NotBefore.After(now.Add(skew)):
		return []Finding{finding(NotYetValid, "wait until then, or check the clock of the machine that issued it",
			"the serving certificate is not valid before %s%s", date(leaf.NotBefore), clock).within(now, leaf.NotBefore)}
	case leaf.NotBefore.After(now):
		return []Finding{finding(NotYetValid, "wait until then; issuers should backdate certificates by a few minutes",
			"the serving certificate is not valid before %s%s; clients refuse it until then",
			date(leaf.NotBefore), clock).within(now, leaf.NotBefore).withSeverity(SeverityWarning)}
	}
	return expirySoon(leaf, now, clock)
}

// expirySoon uses fractions of the lifetime, because lifetimes range from days to years. It calculates in seconds,
// because a time.Duration is limited to 292 years.
func expirySoon(leaf *x509.Certificate, now time.Time, clock string) []Finding {
	if !leaf.NotAfter.Before(lastInstant()) {
		return nil // it never expires
	}
	total := leaf.NotAfter.Unix() - leaf.NotBefore.Unix()
	left := leaf.NotAfter.Unix() - now.Unix()
	soon := func(share string) Finding {
		return finding(
			ExpiresSoon,
			"renew it now; an issuer such as cert-manager renews a certificate when a third of its lifetime is left",
			"the serving certificate expires on %s%s: less than %s of its lifetime is left",
			date(leaf.NotAfter),
			clock,
			share,
		).within(now, leaf.NotAfter)
	}
	switch {
	case left*10 < total:
		return []Finding{soon("a tenth")}
	case left*3 < total:
		return []Finding{soon("a third").withSeverity(SeverityWarning)}
	default:
		return nil
	}
}

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
func (r *run) issuersLast(v verdict) {
	if v.err != nil || r.anchor.unknown {
		return // already reported
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
			return
		}
	}
	for _, ca := range ending {
		r.found.add(r.tooSoon(ca, "renew the CA's certificate; \"pinniped ip-tls set\" moves clients to another CA "+
			"without an outage", "a CA that clients need"))
	}
}

func (r *run) endsSooner(cert *x509.Certificate) bool {
	return r.ExpiresWithin > 0 && cert.NotAfter.Before(r.Now.Add(r.ExpiresWithin))
}

func (r *run) tooSoon(cert *x509.Certificate, hint, what string) Finding {
	return finding(ExpiresSoon, hint, "%s (%s) expires on %s, but it must be valid for %s",
		what, subject(cert), date(cert.NotAfter), span(r.Now, r.Now.Add(r.ExpiresWithin))).within(r.Now, cert.NotAfter)
}

// moments returns the times at which to verify: now, moved into the serving certificate's validity (another finding
// reports if it is outside), and, if other certificates become valid within the skew, the time at which all are valid.
func moments(now time.Time, skew time.Duration, leaf *x509.Certificate, others ...[]numbered) []time.Time {
	at := now
	if at.Before(leaf.NotBefore) {
		at = leaf.NotBefore
	}
	if at.After(leaf.NotAfter) {
		at = leaf.NotAfter.Add(-time.Second)
	}
	all := []time.Time{at}
	latest := at
	for _, group := range others {
		for _, cert := range group {
			if begins := cert.NotBefore; begins.After(latest) && !begins.After(now.Add(skew)) {
				latest = begins
			}
		}
	}
	if latest.After(at) {
		all = append(all, latest)
	}
	return all
}
