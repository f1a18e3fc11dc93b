package check

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func (o *Options) conclude(r *result.Check) {
	r.OK = true
	for i := range r.Subjects {
		s := &r.Subjects[i]
		if s.Certificate.Findings == nil {
			s.Certificate.Findings = []certs.Finding{}
		}
		s.NotMade = o.notMade(r.Source)
		r.OK = r.OK && !slices.ContainsFunc(s.Certificate.Findings, o.fails)
		broken := func(f certs.Finding) bool { return f.Refuses() && f.Code != certs.ExpiresSoon }
		if o.Timeline && slices.ContainsFunc(s.Certificate.Findings, broken) {
			s.BreaksAt = &r.At
		} else if first := slices.IndexFunc(s.Timeline, func(e certs.Event) bool { return e.Breaks }); first >= 0 {
			s.BreaksAt = &s.Timeline[first].At
		}
	}
}

// judges reports whether an error is a verdict on a certificate, which an unreachable endpoint is not.
func judges(f certs.Finding) bool { return f.Code != certs.EndpointUnreachable }

func (o *Options) fails(f certs.Finding) bool {
	return f.Refuses() || o.FailOn == "warning" && f.Severity == certs.SeverityWarning
}

func (o *Options) text(checked *result.Check) []byte {
	var out strings.Builder
	bundle := cmp.Or(checked.CABundle.String(), "none: clients use their system roots")
	for i, s := range checked.Subjects {
		if i > 0 {
			out.WriteString("\n")
		}
		o.writeSubject(&out, s, bundle, checked.At)
	}
	ui.List(&out, "not checked", checked.NotChecked)
	return []byte(out.String())
}

func (o *Options) writeSubject(out *strings.Builder, s result.CheckedCertificate, bundle string, at time.Time) {
	verdict := o.Style.Good("good")
	switch errs := s.Certificate.Errors(); {
	case slices.ContainsFunc(errs, judges):
		verdict = o.Style.Bad("refused")
	case len(errs) > 0:
		verdict = o.Style.Bad("not reached")
	case len(s.Certificate.Warnings()) > 0:
		verdict = o.Style.Caution("good, with warnings")
	}
	if !o.at.IsZero() {
		verdict += " at " + at.Format(time.RFC3339)
	}
	ui.Fprintf(out, "%s: %s\n", o.Style.Bold(s.Name), verdict)
	if leaf := s.Certificate; leaf.Leaf != nil {
		names := plan.OrNone(strings.Join(slices.Concat(leaf.DNSNames, leaf.IPAddresses), ", "))
		ui.Fprintf(out, "  names:      %s\n  valid:      from %s until %s\n  SHA-256:    %s\n", names,
			leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339), leaf.SHA256)
		if strings.HasPrefix(leaf.Key, "ECDSA") {
			// This is no finding, because every current client supports ECDSA. See `pinniped explain RSAOnlyClients`.
			ui.Fprintf(out, "  key:        %s; RSA-only clients cannot connect\n", leaf.Key)
		}
		ui.Fprintf(out, "  CA bundle:  %s\n", bundle)
	}
	for _, f := range s.Certificate.Findings {
		ui.Fprintf(out, "  %s %s\n", o.mark(f), f)
		if f.Hint != "" {
			ui.Fprintf(out, "      %s\n", o.Style.Faint(f.Hint))
		}
	}
	if !o.Timeline {
		return
	}
	breaks := "nothing known"
	if s.BreaksAt != nil && s.BreaksAt.Equal(at) {
		breaks = o.Style.Bad("it is already broken")
	} else if s.BreaksAt != nil {
		breaks = "first at " + s.BreaksAt.Format(time.RFC3339)
	}
	ui.Fprintf(out, "  breaks:     %s\n", breaks)
	for _, event := range s.Timeline {
		for _, f := range event.Findings {
			ui.Fprintf(out, "  %s  %s %s\n", event.At.Format(time.RFC3339), o.mark(f), f)
		}
	}
}

func (o *Options) mark(f certs.Finding) string {
	if f.Refuses() {
		return o.Style.Bad("✗")
	}
	if f.Severity == certs.SeverityInfo {
		return "•"
	}
	return o.Style.Caution("!")
}

// notMade returns the checks for which the flags give no input, with the reasons.
func (o *Options) notMade(source result.Source) []result.CheckNotMade {
	type codes = []certs.Code
	ofKey := codes{certs.KeyMismatch, certs.KeyEncrypted, certs.KeyUnreadable, certs.HandshakeFailed}
	ofEndpoint := codes{certs.EndpointUnreachable, certs.EndpointServesOther}
	ofCluster := codes{
		certs.SecretNotFound, certs.SecretNotPermitted, certs.SecretIncomplete, certs.ClocksDiffer,
		certs.LoadBalancerIPUnused, certs.OldClientsBreak,
	}
	external := o.Certificate.ExternalEndpoint
	cluster, file := source == result.SourceCluster, source == result.SourceFile
	var list []result.CheckNotMade
	for _, skipped := range []struct {
		when   bool
		reason string
		codes
	}{
		{!cluster, "no cluster was read", ofCluster},
		{cluster, `no address is probed: use "pinniped ip-tls status"`, ofEndpoint},
		{cluster && !o.at.IsZero(), "the certificate is checked as of another time (--at)", codes{certs.ClocksDiffer}},
		{source == result.SourceEndpoint, "only the server has the private key", ofKey},
		{file, "no endpoint is used", ofEndpoint},
		{file && len(o.Key) == 0, "no private key was given (--key)", ofKey},
		{file && len(o.Names) == 0 && external == "", "no --name was given", codes{certs.NameNotCovered}},
		{file && external == "", "no --external-endpoint was given", codes{certs.EndpointInvalid}},
	} {
		for _, code := range skipped.codes {
			if skipped.when {
				list = append(list, result.CheckNotMade{Code: code, Reason: skipped.reason})
			}
		}
	}
	slices.SortFunc(list, func(a, b result.CheckNotMade) int { return cmp.Compare(a.Code, b.Code) })
	return list
}
