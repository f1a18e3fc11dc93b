package change

import (
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

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
			progress.Warn("%q also manages fields that change; if it applies manifests, make the same change in them, or it "+
				"will revert yours", manager)
		}
	}
}
