package change

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Result is the JSON and YAML output of the commands.
type Result = result.Change

func (c *Change) newResult(proposal *Proposal) *Result {
	st, p, dryRun := proposal.Snapshot, proposal.Plan, c.Flags.DryRun
	done := &Result{
		Outcome: proposal.Outcome, CredentialIssuer: st.Issuer.Name, Certificate: p.Report, CABundle: expectedBundle(p),
		Changes: p.Changes,
	}
	if secret := p.Request.SecretName(); secret.Name != "" {
		done.Secret = new(result.ObjectRef(secret))
	}
	if len(p.Changes) == 0 {
		done.Outcome, done.Changes = result.OutcomeUnchanged, []plan.FieldChange{}
	}
	if dryRun != session.DryRunNone {
		done.DryRun = result.DryRun(dryRun)
	}
	return done
}

// expectedBundle returns the CA bundle for clients, or nil if the agent has yet to create a CA.
func expectedBundle(p *plan.Plan) result.CABundle {
	if p.Generated && len(p.Bundle) == 0 {
		return nil
	}
	return result.BundleOf(p.Bundle)
}

// print writes the result to stdout, and returns err.
func (c *Change) print(result *Result, err error) error {
	return c.Session.Print(result, err, func() ([]byte, error) { return c.text(result) })
}

func (c *Change) text(done *Result) ([]byte, error) {
	if done.Outcome == result.OutcomeRefused || done.Outcome == result.OutcomeNotConverged {
		return nil, nil // the steps and the error have said it
	}
	var out strings.Builder
	suffix := ""
	if done.DryRun != "" {
		suffix = fmt.Sprintf(" (%s dry run)", done.DryRun)
	}
	ui.Fprintf(&out, "credentialissuer/%s %s%s\n", done.CredentialIssuer, done.Outcome, suffix)
	rows := make([][]string, 0, len(done.Changes))
	for _, change := range done.Changes {
		from, to := plan.OrNone(change.From), plan.OrNone(change.To)
		if c.Flags.Diff {
			ui.Fprintf(&out, "- %s: %s\n+ %s: %s\n", change.Field, from, change.Field, to)
		} else {
			rows = append(rows, []string{strings.TrimPrefix(change.Field, "spec.impersonationProxy."), from, to})
		}
	}
	if len(rows) > 0 {
		if err := ui.Table(&out, []string{"field", "before", "after"}, rows); err != nil {
			return nil, err
		}
	}
	leaf := done.Certificate
	if leaf.SHA256 != "" {
		ui.Fprintf(&out, "certificate: SHA-256 %s, valid until %s\n", leaf.SHA256, leaf.NotAfter.Format(time.RFC3339))
	}
	bundle := done.CABundle.String()
	switch {
	case done.CABundle == nil:
		bundle = "from a CA that the agent creates"
	case len(done.CABundle) == 0:
		bundle = "none: clients use their system roots"
	}
	ui.Fprintf(&out, "CA bundle: %s\n", bundle)
	if done.Transition != nil {
		ui.Fprintf(&out, "transition: %s\n", done.Transition)
	}
	if done.Endpoint != "" {
		ui.Fprintf(&out, "endpoint: %s\n", done.Endpoint)
	}
	return []byte(out.String()), nil
}

// Say prints the findings of the checks, except the first one that refuses, which is in the error of plan.Refusal.
func Say(progress *ui.Progress, st *plan.Snapshot, p *plan.Plan) {
	if p.Report.Leaf != nil {
		progress.Info("Certificate for %s, valid until %s, SHA-256 %s",
			plan.OrNone(strings.Join(slices.Concat(p.Report.DNSNames, p.Report.IPAddresses), ", ")),
			p.Report.NotAfter.Format(time.RFC3339), p.Report.SHA256)
	}
	refused := false
	for _, finding := range p.Report.Findings {
		if finding.Refuses() && !refused {
			refused = true
			continue
		}
		text := finding.String()
		if finding.Hint != "" {
			text += " (" + finding.Hint + ")"
		}
		switch {
		case finding.Refuses():
			progress.Fail("%s", text)
		case finding.Allowed:
			progress.Warn("allowed: %s", text)
		case finding.Severity == certs.SeverityWarning:
			progress.Warn("%s", text)
		default:
			progress.Info("%s", text)
		}
	}
	if p.Report.OK() {
		if p.Report.Leaf != nil {
			progress.Done("Checked the certificate")
		}
		for _, manager := range plan.OtherManagers(st.Issuer, p.Changes) {
			progress.Warn("%q also manages fields of this change; if it applies manifests, make the change in them too, or it "+
				"will be reverted", manager)
		}
	}
}
