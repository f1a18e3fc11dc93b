package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

func (o *Options) text(r *result.Status) []byte {
	var out strings.Builder
	verdict := o.Style.Good("in effect")
	if !r.InEffect {
		verdict = o.Style.Bad("not in effect")
	}
	colour := o.Style.Caution
	if r.Users.State == result.UsersNotAffected {
		colour = o.Style.Good
	}
	if r.Users.State == result.UsersAllRefused {
		colour = o.Style.Bad
	}
	ui.Fprintf(&out, "USERS: %s\n", colour(r.Users.Message))
	for _, command := range r.Users.Next {
		ui.Fprintf(&out, "  run: %s\n", command)
	}
	if r.CredentialIssuer != "" {
		ui.Fprintf(&out, "%s: %s\n", o.Style.Bold("credentialissuer/"+r.CredentialIssuer), verdict)
	}
	for _, problem := range r.Problems {
		ui.Fprintf(&out, "  %s %s\n", o.Style.Bad("✗"), problem.Message)
	}
	line := func(label, text string) { ui.Fprintf(&out, "  %-13s%s\n", label+":", text) }
	if r.Configured != nil {
		line("configured", configuredText(r.Configured))
	}
	if r.Agent != nil {
		text := r.Agent.Status + ", " + r.Agent.Reason
		if r.Agent.Running == result.AnswerNo {
			text = "not running; last reported " + text
		}
		if len(r.Problems) == 0 { // a problem has the message
			text += ": " + r.Agent.Message
		}
		line("agent", text)
	}
	if r.Published != nil {
		line("endpoint", r.Published.Endpoint)
		line("CA bundle", cmp.Or(r.Published.CABundle.String(), "none: clients use their system roots"))
	}
	if r.Transition != nil {
		line("transition", o.Style.Caution(r.Transition.String()))
	}
	if c := r.Certificate; c != nil {
		line("certificate", plan.OrNone(strings.Join(slices.Concat(c.DNSNames, c.IPAddresses), ", ")))
		line("SHA-256", c.SHA256)
		if c.Issuer != "" {
			line("issued by", c.Issuer)
		}
		line("valid", o.validity(c, r.At))
	}
	if r.RenewedBy != nil {
		line("renewed by", o.renewerText(r.RenewedBy))
	} else if r.Certificate != nil && r.Certificate.Source == result.SourceSecret {
		line("renewed by", o.Style.Caution("unknown; write the next certificate into the Secret before this one expires"))
	}
	if r.Replicas != nil {
		serve := "this certificate"
		if r.Certificate != nil && r.Replicas.SHA256 != "" && r.Replicas.SHA256 != r.Certificate.SHA256 {
			serve = "another certificate, SHA-256 " + r.Replicas.SHA256
		}
		line("replicas", fmt.Sprintf("%d of %d serve %s", r.Replicas.Serving, r.Replicas.Total, serve))
		for _, other := range r.Replicas.Others {
			ui.Fprintf(&out, "               %s %s: %s\n", o.Style.Bad("✗"), other.Name, other.Message)
		}
	}
	o.tables(&out, r)
	ui.List(&out, "not known", r.NotKnown)
	return []byte(out.String())
}

func (o *Options) tables(out *strings.Builder, r *result.Status) {
	var addresses, contexts [][]string
	for _, a := range r.Addresses {
		until, verdict := "-", o.Style.Good("✓")+" as expected"
		if a.NotAfter != nil {
			until = a.NotAfter.Format(time.RFC3339)
		}
		if a.Skipped {
			verdict = "• " + a.Problem
		} else if a.Problem != "" {
			verdict = o.Style.Bad("✗") + " " + cmp.Or(string(a.Code), codeNoResponse)
		}
		addresses = append(addresses, []string{a.Address, plan.OrNone(fmt.Sprintf("%.16s", a.SHA256)), until, verdict})
	}
	for _, file := range r.Kubeconfigs {
		entries := file.Entries
		if len(entries) == 0 { // it cannot be read
			entries = []result.Entry{{Outcome: file.Outcome, Reason: file.Reason}}
		}
		for _, k := range entries {
			contexts = append(contexts, []string{ui.Plain(file.Path), ui.Plain(k.Name), o.contextVerdict(k)})
		}
	}
	table := func(header []string, rows [][]string) {
		if len(rows) > 0 {
			out.WriteString("\n")
			_ = ui.Table(out, header, rows) // a Builder cannot fail
		}
	}
	table([]string{"address", "presents", "until", "verdict"}, addresses)
	if len(r.Clients) > 1 { // a single one is shown above
		out.WriteString("\n")
		_ = session.ClientTable(out, o.Style, r.Clients) // a Builder cannot fail
	}
	table([]string{"kubeconfig", "context", "verdict"}, contexts)
}

func (o *Options) contextVerdict(k result.Entry) string {
	works, reason := o.Style.Good("✓"), ""
	if k.Reason != "" {
		works, reason = o.Style.Caution("!"), ": "+ui.Plain(k.Reason)
	}
	verdict := map[result.FileOutcome]string{
		result.FileWorks: works + " works", result.FileOutdated: o.Style.Caution("!") + " outdated",
		result.FileWillBreak: o.Style.Bad("✗") + " will break", result.FileBroken: o.Style.Bad("✗") + " broken",
	}[k.Outcome]
	return cmp.Or(verdict, "• not known") + reason
}

func configuredText(c *result.ConfiguredStatus) string {
	text := "a certificate that the agent generates"
	if c.Secret != nil {
		text = fmt.Sprintf("Secret %s/%s", c.Secret.Namespace, c.Secret.Name)
		if c.Verification != "" {
			text += ", verification " + string(c.Verification)
		}
		if c.CABundleSource != "" {
			text += ", CA bundle from " + c.CABundleSource
		}
	}
	return text + " (mode " + c.Mode + ")"
}

func (o *Options) renewerText(r *result.Renewer) string {
	text := fmt.Sprintf("%s %q", r.Kind, r.Name)
	switch r.Kind {
	case renewedByAgent:
		return "the agent itself"
	case result.CertManagerCertificate:
		text = "cert-manager, " + text
	}
	if r.Issuer != "" {
		text += ", from " + r.Issuer
	}
	if r.RenewalTime != nil {
		text += ", next at " + r.RenewalTime.UTC().Format(time.RFC3339)
	}
	if r.Trouble != "" {
		text += "; " + o.Style.Caution(r.Trouble)
	}
	return text
}

// validity returns the dates and the time left, and on a terminal a bar of the elapsed lifetime.
func (o *Options) validity(c *result.CertificateStatus, at time.Time) string {
	text := fmt.Sprintf("%s to %s", c.NotBefore.Format(time.RFC3339), c.NotAfter.Format(time.RFC3339))
	left, lifetime := c.NotAfter.Sub(at), c.NotAfter.Sub(c.NotBefore)
	remaining, paint := ui.Roughly(left)+" left", o.Style.Good
	switch {
	case at.Before(c.NotBefore):
		remaining, paint = "not valid yet, in "+ui.Roughly(c.NotBefore.Sub(at)), o.Style.Bad
	case left <= 0:
		remaining, paint = "expired "+ui.Roughly(-left)+" ago", o.Style.Bad
	default:
		if lifetime > 0 {
			remaining += fmt.Sprintf(" (%d%%)", left*100/lifetime)
		}
		if left < lifetime/10 {
			paint = o.Style.Bad
		} else if left < lifetime/3 {
			paint = o.Style.Caution
		}
	}
	if o.Terminal {
		text += "  " + paint(bar(c.NotBefore, c.NotAfter, at))
	}
	return text + ", " + paint(remaining)
}

func bar(from, to, at time.Time) string {
	const width = 24
	over := 0
	if to.After(from) && at.After(from) {
		over = int(width * min(at.Sub(from), to.Sub(from)).Seconds() / to.Sub(from).Seconds())
	}
	return "▕" + strings.Repeat("█", over) + strings.Repeat("░", width-over) + "▏"
}
