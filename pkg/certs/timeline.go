package certs

import (
	"bytes"
	"crypto/x509"
	"slices"
	"time"
)

// Event is an instant at which the verdict on a certificate changes for the worse.
type Event struct {
	At time.Time `json:"at"`
	// Findings are those that are new at that instant.
	Findings []Finding `json:"findings"`
	// Breaks is true when clients can no longer connect, or the certificate would be refused for another reason than that
	// it will expire soon.
	Breaks bool `json:"breaks"`
}

// maxInstants bounds what a hostile bundle can cost: each instant is a run of all checks.
const maxInstants = 200

// Timeline returns what will go wrong with a certificate that is not renewed, in the order of time. There is an Event
// for each time after in.Now at which Check finds something new, until the serving certificate has expired. What
// Check finds at in.Now is not repeated. in.ServerTime and in.ExpiresWithin are ignored.
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

// sameMatter says whether now repeats the finding before: it has the same code and no higher severity. The messages
// must be the same, too, except for findings about the dates of the serving certificate, whose messages tell the
// time left and so differ every day.
func sameMatter(before, now Finding) bool {
	if before.Code != now.Code || before.Severity < now.Severity {
		return false
	}
	return before.Message == now.Message || slices.Contains([]Code{Expired, ExpiresSoon, NotYetValid}, now.Code)
}

// instants returns the times after in.Now at which something may change: certificates begin, age and end.
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
	// What lasts until the end of the year 9999 never ends (RFC 5280, section 4.1.2.5), and no later time can be written.
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

// involved returns the certificates on whose dates the verdict may depend: the chain, and what may have issued
// something in it, from the bundles or the system roots.
func (r *run) involved() []*x509.Certificate {
	var found []*x509.Certificate
	for _, cert := range r.chain {
		found = append(found, cert.Certificate)
	}
	for i := 0; i < len(found); i++ { // found grows meanwhile
		for _, candidate := range r.bundle {
			if bytes.Equal(found[i].RawIssuer, candidate.RawSubject) && !slices.ContainsFunc(found, candidate.Equal) {
				found = append(found, candidate.Certificate)
			}
		}
	}
	r.anchor = r.anchors()
	for _, chain := range r.verify(r.anchor).chains {
		for _, cert := range chain {
			if !slices.ContainsFunc(found, cert.Equal) {
				found = append(found, cert)
			}
		}
	}
	return found
}
