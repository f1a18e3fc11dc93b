package serving

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Judgement is the verdict on a change, from the outcomes of its clients.
type Judgement struct {
	// Broken clients verify before the change and fail after it.
	Broken []Outcome
	// Refused is true if the change breaks any client, Everybody if no client verifies after it that verified before.
	Refused, Everybody bool
}

// Judge refuses a change if and only if it breaks a client.
func Judge(all []Outcome) Judgement {
	j := Judgement{Everybody: true}
	for _, o := range all {
		switch {
		case o.Broken():
			j.Broken = append(j.Broken, o)
		case o.After == "":
			j.Everybody = j.Everybody && o.Before != ""
		}
	}
	j.Refused = len(j.Broken) > 0
	j.Everybody = j.Refused && j.Everybody
	return j
}

// Refused returns the IDs of the revisions in use of which no client verifies what is served, while it is valid.
func (h History) Refused(served Served, at time.Time) []string {
	verify := map[*Revision]bool{}
	outcomes := Effect(h, served, served, served.whileValid(at))
	for _, o := range outcomes {
		verify[o.Revision] = verify[o.Revision] || o.After == ""
	}
	var all []string
	for _, o := range outcomes {
		if !verify[o.Revision] && !slices.Contains(all, o.Revision.ID) {
			all = append(all, o.Revision.ID)
		}
	}
	return all
}

// Without removes the broken clients whose reasons an administrator has accepted.
func (j Judgement) Without(accepted ...certs.Code) Judgement {
	j.Broken = slices.DeleteFunc(
		slices.Clone(j.Broken),
		func(o Outcome) bool { return slices.Contains(accepted, o.After) },
	)
	j.Refused = j.Refused && len(j.Broken) > 0
	return j
}

// Revisions returns the IDs of the revisions with broken clients.
func (j Judgement) Revisions() []string {
	var all []string
	for _, o := range j.Broken {
		if o.Revision != nil && !slices.Contains(all, o.Revision.ID) {
			all = append(all, o.Revision.ID)
		}
	}
	return all
}

// Who describes the clients: "kubeconfigs made between … and … for proxy.example.com".
func (c *Client) Who() string {
	text := strings.TrimSuffix("kubeconfigs made "+c.Revision.When(), " made ")
	if host := c.Revision.Host(); host != "" {
		text += " for " + host
	}
	if c.Name != c.Revision.Host() {
		text += " that use the name " + c.Name
	}
	return text
}

// When says when kubeconfigs with the Revision were made; it is empty if unknown.
func (s *Revision) When() string {
	switch {
	case s.Since.IsZero() && s.Until.IsZero():
		return ""
	case s.Since.IsZero():
		return "until " + moment(s.Until)
	case s.Until.IsZero():
		return "since " + moment(s.Since)
	}
	return "between " + moment(s.Since) + " and " + moment(s.Until)
}

func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Describe lists the certificates of a CA bundle in one line.
func Describe(bundle []byte) string {
	members, _ := certs.ParseBundle(bundle)
	if len(members) == 0 {
		return "(no certificate)"
	}
	const most = 3
	var parts []string
	for _, member := range members[:min(len(members), most)] {
		name := cmp.Or(member.Subject.CommonName, member.Subject.String(), strings.Join(member.DNSNames, ", "))
		parts = append(parts, fmt.Sprintf("%.60q (SHA-256 %s)", name, certs.Fingerprint(member.Raw)[:16]))
	}
	if more := len(members) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

// Why says why the clients fail, as a predicate of Who: "trust …, which does not verify the certificate".
func (o *Outcome) Why() string {
	switch o.After { //nolint:exhaustive // all others are self-explanatory
	case certs.BundleDoesNotVerify:
		if members, _ := certs.ParseBundle(o.Bundle); len(members) == 0 {
			return "have no CA bundle, and the system roots do not verify the certificate"
		}
		return fmt.Sprintf("trust %s, which does not verify the certificate", Describe(o.Bundle))
	case certs.NameNotCovered:
		return fmt.Sprintf("expect %s, which the certificate does not cover", o.Name)
	case SwitchedOff:
		return "use a proxy that is disabled"
	}
	return "are refused"
}

// Sentences says which clients are broken and why, one sentence for each distinct combination.
func (j Judgement) Sentences() []string {
	var all []string
	seen := map[string]bool{}
	for _, o := range j.Broken {
		if o.Revision != nil && o.After != certs.NameNotCovered {
			o.Name = o.Revision.Host() // clients that do not trust the CA fail for every name
		}
		if text := fmt.Sprintf("%s %s (%s)", o.Who(), o.Why(), o.After); !seen[text] {
			seen[text] = true
			all = append(all, text)
		}
	}
	return all
}
