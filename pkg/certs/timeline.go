package certs

import (
	"bytes"
	"crypto/x509"
	"slices"
	"time"
)

// Event is a time at which the verdict on a certificate gets worse.
type Event struct {
	At time.Time `json:"at"`
	// Findings are the findings that are new at that time.
	Findings []Finding `json:"findings"`
	// Breaks is true if clients cannot connect any more, or the certificate would be refused for any reason other than
	// ExpiresSoon.
	Breaks bool `json:"breaks"`
}

// maxInstants limits the cost of a hostile bundle: each instant runs all checks.
const maxInstants = 200

// Timeline returns what will go wrong with a certificate that is not renewed, in chronological order: an Event for each
// time after in.Now at which Check finds something new, until the serving certificate has expired. It ignores
// in.ServerTime and in.ExpiresWithin.
func Timeline(in Input) []Event {
	in.ServerTime, in.ExpiresWithin = time.Time{}, 0
	before := Check(in).Findings
	var events []Event
	for _, at := range instants(in) {
		in.Now = at
		after := Check(in).Findings
		event := Event{At: at.UTC()}
		for _, f := range after {
			if f.Severity == SeverityInfo || slices.ContainsFunc(before, func(old Finding) bool { return sameMatter(old, f) }) {
				continue
			}
			event.Findings = append(event.Findings, f)
			event.Breaks = event.Breaks || f.Refuses() && f.Code != ExpiresSoon
		}
		if len(event.Findings) > 0 {
			events = append(events, event)
		}
		before = after
	}
	return events
}

// sameMatter reports whether now repeats the finding before: it has the same code, no higher severity and the same
// message. Messages about the dates of the serving certificate may differ.
func sameMatter(before, now Finding) bool {
	if before.Code != now.Code || before.Severity < now.Severity {
		return false
	}
	return before.Message == now.Message || slices.Contains([]Code{Expired, ExpiresSoon, NotYetValid}, now.Code)
}

// instants returns the times after in.Now at which something may change: certificates become valid, age and expire.
func instants(in Input) []time.Time {
	r := newRun(in)
	r.files()
	if len(r.chain) == 0 {
		return nil
	}
	leaf := r.chain[0].Certificate
	end := leaf.NotAfter.Unix() + 1
	seconds := []int64{end}
	total := leaf.NotAfter.Unix() - leaf.NotBefore.Unix()
	for _, share := range []int64{3, 10} {
		seconds = append(seconds, leaf.NotAfter.Unix()-(total-1)/share) // the first second with less than this share left
	}
	for _, cert := range r.involved() {
		seconds = append(seconds, cert.NotBefore.Add(-r.Skew).Unix(), cert.NotBefore.Unix(), cert.NotAfter.Unix()+1)
	}
	slices.Sort(seconds)
	// A certificate until the end of the year 9999 never expires (RFC 5280, section 4.1.2.5), and JSON has no later
	// time.
	end = min(end, lastInstant().Unix())
	seconds = slices.DeleteFunc(slices.Compact(seconds), func(s int64) bool { return s <= in.Now.Unix() || s > end })
	if len(seconds) > maxInstants {
		seconds = append(seconds[:maxInstants-1], end)
	}
	times := make([]time.Time, len(seconds))
	for i, s := range seconds {
		times[i] = time.Unix(s, 0)
	}
	return times
}

// involved returns the certificates whose dates may affect the verdict: the chain, and all potential issuers from the
// bundle or the system roots.
func (r *run) involved() []*x509.Certificate {
	var found []*x509.Certificate
	for _, cert := range r.chain {
		found = append(found, cert.Certificate)
	}
	for i := 0; i < len(found); i++ { // found grows in the loop
		for _, candidate := range r.bundle {
			if bytes.Equal(found[i].RawIssuer, candidate.RawSubject) && !slices.ContainsFunc(found, candidate.Equal) {
				found = append(found, candidate.Certificate)
			}
		}
	}
	r.anchor = r.anchors()
	for _, chain := range r.verify().chains {
		for _, cert := range chain {
			if !slices.ContainsFunc(found, cert.Equal) {
				found = append(found, cert)
			}
		}
	}
	return found
}
