package change

import (
	"fmt"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// What a command did.
const (
	actionConfigured   = "configured"
	actionUnset        = "unset"
	actionUndone       = "undone"
	ActionUnchanged    = "unchanged"
	ActionRefused      = "refused"
	ActionNotConverged = "not converged"
)

// Result is what `-o json` and `-o yaml` print. Scripts rely on its fields.
type Result struct {
	// APIVersion and Kind are those of a plan, which the result of a dry run is: `ip-tls apply` takes it.
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	// Action is "configured", "unset", "undone", "unchanged", "refused" or "not converged".
	Action string `json:"action"`
	// DryRun is "client" or "server" when nothing was really done.
	DryRun           string `json:"dryRun,omitempty"`
	CredentialIssuer string `json:"credentialIssuer"`
	// Secret is the one that is configured, or that was until now.
	Secret plan.SecretRef `json:"secret"`
	// Certificate is what the checks have found out about the certificate.
	Certificate certs.Report `json:"certificate"`
	// CABundle describes the CA bundle that clients get; empty when they use their system roots.
	CABundle string `json:"caBundle"`
	// Changes are the fields that change.
	Changes []plan.FieldChange `json:"changes"`
	// Endpoint and Addresses are what was seen while waiting.
	Endpoint   string    `json:"endpoint,omitempty"`
	Addresses  []Address `json:"addresses,omitempty"`
	Problems   []string  `json:"problems,omitempty"`
	RolledBack bool      `json:"rolledBack,omitempty"`
	// Moved says what is no longer as it was when a plan was made.
	Moved []string `json:"moved,omitempty"`
	// Plan is what `ip-tls apply` goes by; nil when it was not a dry run.
	Plan *Plan `json:"plan,omitempty"`
}

// Address is what one address of the endpoint presented.
type Address struct {
	Address string `json:"address"`
	SHA256  string `json:"sha256,omitempty"`
	Problem string `json:"problem,omitempty"`
}

func (c *Change) newResult(proposal *Proposal) *Result {
	st, p, dryRun := proposal.Snapshot, proposal.Plan, c.Flags.DryRun
	result := &Result{
		Action:           actionConfigured,
		CredentialIssuer: st.Issuer.Name,
		Secret:           plan.SecretRef(p.Request.SecretName()),
		Certificate:      p.Report,
		CABundle:         describeAdvertised(p),
		Changes:          p.Changes,
		Moved:            proposal.Moved,
	}
	if p.Generated {
		result.Action = actionUnset
	}
	if proposal.Action != "" {
		result.Action = proposal.Action
	}
	if len(p.Changes) == 0 {
		result.Action, result.Changes = ActionUnchanged, []plan.FieldChange{}
	}
	if dryRun != session.DryRunNone {
		result.DryRun = dryRun
	}
	if dryRun != session.DryRunNone && !c.OfRotation { // whose record belongs to each of its changes
		result.APIVersion, result.Kind, result.Plan = planAPIVersion, planKind, newPlan(c.Verb.Name(), st, p)
	}
	return result
}

// describeAdvertised describes the CA bundle that clients get; empty for the system roots.
func describeAdvertised(p *plan.Plan) string {
	if p.Generated && len(p.Bundle) == 0 {
		return "of a CA that the agent makes"
	}
	return plan.DescribePEMOrNone(p.Bundle)
}

// print writes the result to stdout.
func (c *Change) print(result *Result) error {
	return c.Session.Write(result, func() ([]byte, error) { return c.text(result) })
}

// WriteDiff shows the fields that change, before and after.
func WriteDiff(out *strings.Builder, changes []plan.FieldChange) {
	for _, change := range changes {
		fmt.Fprintf(out, "- %s: %s\n+ %s: %s\n", change.Field, plan.OrNone(change.From), change.Field,
			plan.OrNone(change.To))
	}
}

func (c *Change) text(result *Result) ([]byte, error) {
	if result.Action == ActionRefused || result.Action == ActionNotConverged {
		return nil, nil // the step lines and the error have said it all
	}
	var out strings.Builder
	suffix := ""
	if result.DryRun != "" {
		suffix = fmt.Sprintf(" (%s dry run)", result.DryRun)
	}
	fmt.Fprintf(&out, "credentialissuer/%s %s%s\n", result.CredentialIssuer, result.Action, suffix)
	if len(result.Changes) > 0 && c.Flags.Diff {
		WriteDiff(&out, result.Changes)
	} else if len(result.Changes) > 0 {
		rows := make([][]string, 0, len(result.Changes))
		for _, change := range result.Changes {
			rows = append(rows,
				[]string{
					strings.TrimPrefix(change.Field, "spec.impersonationProxy."), plan.OrNone(change.From),
					plan.OrNone(change.To),
				})
		}
		if err := ui.Table(&out, []string{"field", "before", "after"}, rows); err != nil {
			return nil, err
		}
	}
	leaf := result.Certificate
	if leaf.SHA256 != "" {
		fmt.Fprintf(&out, "certificate: SHA-256 %s, valid until %s\n", leaf.SHA256, leaf.NotAfter.Format(time.RFC3339))
	}
	bundle := result.CABundle
	if bundle == "" {
		bundle = "none: clients use their system roots"
	}
	fmt.Fprintf(&out, "CA bundle: %s\n", bundle)
	if result.Endpoint != "" {
		fmt.Fprintf(&out, "endpoint: %s\n", result.Endpoint)
	}
	return []byte(out.String()), nil
}
