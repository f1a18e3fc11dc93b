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

// text returns the status as text.
func (o *Options) text(r *result.Status) ([]byte, error) {
	var out strings.Builder
	verdict := o.Style.Good("in effect")
	if !r.InEffect {
		verdict = o.Style.Bad("not in effect")
	}
	ui.Fprintf(&out, "USERS: %s\n", o.usersMark(r.Users.State)(r.Users.Message))
	for _, command := range r.Users.Next {
		ui.Fprintf(&out, "  run: %s\n", command)
	}
	if r.CredentialIssuer != "" {
		ui.Fprintf(&out, "%s: %s\n", o.Style.Bold("credentialissuer/"+r.CredentialIssuer), verdict)
	}
	for _, problem := range r.Problems {
		ui.Fprintf(&out, "  %s %s\n", o.Style.Bad("✗"), problem.Message)
	}
	line := func(label, text string) {
		ui.Fprintf(&out, "  %-13s%s\n", label+":", text)
	}
	if r.Configured != nil {
		line("configured", configuredText(*r.Configured))
	}
	if r.Agent != nil {
		line("agent", agentText(r))
	}
	if r.Published != nil {
		line("endpoint", r.Published.Endpoint)
		line("CA bundle", bundleText(r.Published.CABundle))
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
	} else if r.Configured != nil && r.Configured.Source == result.SourceSecret && r.Certificate != nil &&
		r.Certificate.Source == result.SourceSecret {
		line("renewed by", o.Style.Caution("unknown; write the next certificate into the Secret before this one expires"))
	}
	if r.Replicas != nil {
		line("replicas", replicasText(r))
		for _, other := range r.Replicas.Others {
			ui.Fprintf(&out, "               %s %s: %s\n", o.Style.Bad("✗"), other.Name, other.Message)
		}
	}
	if err := o.tables(&out, r); err != nil {
		return nil, err
	}
	for i, what := range r.NotKnown {
		if i == 0 {
			out.WriteString("\nnot known:\n")
		}
		ui.Fprintf(&out, "  %s\n", what)
	}
	return []byte(out.String()), nil
}

func (o *Options) tables(out *strings.Builder, r *result.Status) error {
	if len(r.Addresses) > 0 {
		var rows [][]string
		for _, a := range r.Addresses {
			rows = append(rows,
				[]string{a.Address, plan.OrNone(shortHash(a.SHA256)), untilText(a), o.addressVerdict(a)})
		}
		out.WriteString("\n")
		if err := ui.Table(out, []string{"address", "presents", "until", "verdict"}, rows); err != nil {
			return err
		}
	}
	if len(r.Clients) > 1 { // a single one is shown above
		out.WriteString("\n")
		if err := session.ClientTable(out, o.Style, r.Clients); err != nil {
			return err
		}
	}
	if len(r.Kubeconfigs) > 0 {
		var rows [][]string
		for _, file := range r.Kubeconfigs {
			for _, k := range entriesOf(file) {
				verdict := o.kubeconfigMark(k) + " " + outcomeText(k.Outcome)
				if k.Reason != "" {
					verdict += ": " + ui.Plain(k.Reason)
				}
				rows = append(rows, []string{ui.Plain(file.Path), ui.Plain(k.Name), verdict})
			}
		}
		out.WriteString("\n")
		return ui.Table(out, []string{"kubeconfig", "context", "verdict"}, rows)
	}
	return nil
}

// usersMark returns the colour of the first line.
func (o *Options) usersMark(state result.UsersState) func(string) string {
	switch state {
	case result.UsersNotAffected:
		return o.Style.Good
	case result.UsersAllRefused:
		return o.Style.Bad
	default:
		return o.Style.Caution
	}
}

// agentText returns the agent's report, without the message if a problem has it.
func agentText(r *result.Status) string {
	text := r.Agent.Status + ", " + r.Agent.Reason
	if r.Agent.Running == result.AnswerNo {
		text = "not running; last reported " + text
	}
	if len(r.Problems) == 0 {
		text += ": " + r.Agent.Message
	}
	return text
}

func shortHash(sha256 string) string { return sha256[:min(len(sha256), 16)] }

func untilText(a result.Address) string {
	if a.NotAfter == nil {
		return "-"
	}
	return a.NotAfter.Format(time.RFC3339)
}

func (o *Options) addressVerdict(a result.Address) string {
	switch {
	case a.Skipped:
		return "• " + a.Problem
	case a.Problem != "":
		return o.Style.Bad("✗") + " " + cmp.Or(string(a.Code), codeNoResponse)
	default:
		return o.Style.Good("✓") + " as expected"
	}
}

func (o *Options) kubeconfigMark(k result.Entry) string {
	switch k.Outcome {
	case result.FileWorks:
		if k.Reason != "" {
			return o.Style.Caution("!")
		}
		return o.Style.Good("✓")
	case result.FileBroken, result.FileWillBreak, result.FileFailed:
		return o.Style.Bad("✗")
	case result.FileOutdated:
		return o.Style.Caution("!")
	default:
		return "•"
	}
}

func configuredText(c result.ConfiguredStatus) string {
	if c.Secret == nil {
		return fmt.Sprintf("a certificate that the agent generates (mode %s)", c.Mode)
	}
	text := fmt.Sprintf("Secret %s/%s", c.Secret.Namespace, c.Secret.Name)
	if c.Verification != "" {
		text += ", verification " + string(c.Verification)
	}
	if c.CABundleSource != "" {
		text += ", CA bundle from " + c.CABundleSource
	}
	return text + fmt.Sprintf(" (mode %s)", c.Mode)
}

func bundleText(bundle result.CABundle) string {
	if len(bundle) == 0 {
		return "none: clients use their system roots"
	}
	return bundle.String()
}

// entriesOf returns the contexts of a kubeconfig, or an entry for the file if it cannot be read.
func entriesOf(file result.File) []result.Entry {
	if len(file.Entries) == 0 {
		return []result.Entry{{Outcome: file.Outcome, Reason: file.Reason}}
	}
	return file.Entries
}

// outcomeText returns an outcome in words.
func outcomeText(outcome result.FileOutcome) string {
	switch outcome {
	case result.FileWillBreak:
		return "will break"
	case result.FileNotKnown:
		return "not known"
	default:
		return string(outcome)
	}
}

func (o *Options) renewerText(r *result.Renewer) string {
	var text string
	switch r.Kind {
	case renewedByAgent:
		return "the agent itself"
	case result.CertManagerCertificate:
		text = fmt.Sprintf("cert-manager, Certificate %q", r.Name)
	default:
		text = fmt.Sprintf("%s %q", r.Kind, r.Name)
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
	var remaining string
	paint := o.Style.Good
	switch {
	case at.Before(c.NotBefore):
		remaining, paint = "not valid yet, in "+ui.Roughly(c.NotBefore.Sub(at)), o.Style.Bad
	case left <= 0:
		remaining, paint = "expired "+ui.Roughly(-left)+" ago", o.Style.Bad
	default:
		remaining = ui.Roughly(left) + " left"
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

// bar draws the elapsed part of a lifetime.
func bar(from, to, at time.Time) string {
	const width = 24
	over := 0
	if to.After(from) && at.After(from) {
		over = width
		if at.Before(to) {
			over = int(at.Sub(from) * width / to.Sub(from))
		}
	}
	return "▕" + strings.Repeat("█", over) + strings.Repeat("░", width-over) + "▏"
}

// replicasText returns the number of replicas that serve the certificate shown. If they serve another one, it includes
// that fingerprint.
func replicasText(r *result.Status) string {
	count := fmt.Sprintf("%d of %d serve ", r.Replicas.Serving, r.Replicas.Total)
	if r.Certificate != nil && r.Replicas.SHA256 != "" && r.Replicas.SHA256 != r.Certificate.SHA256 {
		return count + "another certificate, SHA-256 " + r.Replicas.SHA256
	}
	return count + "this certificate"
}
