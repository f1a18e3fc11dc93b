package iptls

import (
	"fmt"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// What a command did.
const (
	actionConfigured   = "configured"
	actionUnset        = "unset"
	actionUndone       = "undone"
	actionUnchanged    = "unchanged"
	actionRefused      = "refused"
	actionNotConverged = "not converged"
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
	Secret SecretRef `json:"secret"`
	// Certificate is what the checks have found out about the certificate.
	Certificate certs.Report `json:"certificate"`
	// CABundle describes the CA bundle that clients get; empty when they use their system roots.
	CABundle string `json:"caBundle"`
	// Changes are the fields that change.
	Changes []Change `json:"changes"`
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

// SecretRef names a Secret.
type SecretRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Address is what one address of the endpoint presented.
type Address struct {
	Address string `json:"address"`
	SHA256  string `json:"sha256,omitempty"`
	Problem string `json:"problem,omitempty"`
}

func newResult(command string, st *state, p *plan, dryRun string) *Result {
	result := &Result{
		Action:           actionConfigured,
		CredentialIssuer: st.issuer.Name,
		Secret:           SecretRef(p.req.secretName()),
		Certificate:      p.report,
		CABundle:         describeAdvertised(p),
		Changes:          p.changes,
		Moved:            p.moved,
	}
	if p.generated {
		result.Action = actionUnset
	}
	if p.action != "" {
		result.Action = p.action
	}
	if len(p.changes) == 0 {
		result.Action, result.Changes = actionUnchanged, []Change{}
	}
	if dryRun != dryRunNone {
		result.DryRun = dryRun
	}
	if dryRun != dryRunNone && command != "rotate" { // whose record belongs to each of its changes
		result.APIVersion, result.Kind, result.Plan = planAPIVersion, planKind, newPlan(command, st, p)
	}
	return result
}

// describeAdvertised describes the CA bundle that clients get; empty for the system roots.
func describeAdvertised(p *plan) string {
	if p.generated && len(p.bundle) == 0 {
		return "of a CA that the agent makes"
	}
	return describePEMOrNone(p.bundle)
}

// print writes the result to stdout.
func (o *Changing) print(result *Result) error {
	return o.write(result, func() ([]byte, error) { return o.text(result) })
}

// writeDiff shows the fields that change, before and after.
func writeDiff(out *strings.Builder, changes []Change) {
	for _, change := range changes {
		fmt.Fprintf(out, "- %s: %s\n+ %s: %s\n", change.Field, orNone(change.From), change.Field, orNone(change.To))
	}
}

func (o *Changing) text(result *Result) ([]byte, error) {
	if result.Action == actionRefused || result.Action == actionNotConverged {
		return nil, nil // the step lines and the error have said it all
	}
	var out strings.Builder
	suffix := ""
	if result.DryRun != "" {
		suffix = fmt.Sprintf(" (%s dry run)", result.DryRun)
	}
	fmt.Fprintf(&out, "credentialissuer/%s %s%s\n", result.CredentialIssuer, result.Action, suffix)
	if len(result.Changes) > 0 && o.Diff {
		writeDiff(&out, result.Changes)
	} else if len(result.Changes) > 0 {
		rows := make([][]string, 0, len(result.Changes))
		for _, change := range result.Changes {
			rows = append(rows, []string{strings.TrimPrefix(change.Field, "spec.impersonationProxy."), orNone(change.From), orNone(change.To)})
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
