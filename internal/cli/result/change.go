package result

import (
	"fmt"
	"strings"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Change is the result of a command that changes what certificate is served.
type Change struct {
	Head
	// Outcome is what was done.
	Outcome Outcome `json:"outcome"`
	// DryRun is set when nothing was really done.
	DryRun DryRun `json:"dryRun,omitempty"`
	// CredentialIssuer is its name; empty when files were refused before the cluster was asked.
	CredentialIssuer string `json:"credentialIssuer"`
	// Secret is the one that is configured, or that was until now; absent for the generated certificate.
	Secret *ObjectRef `json:"secret,omitempty"`
	// Certificate is what the checks have found out about the certificate.
	Certificate certs.Report `json:"certificate"`
	// CABundle is what clients get. It is absent when the agent has yet to make a CA.
	CABundle CABundle `json:"caBundle,omitzero"`
	// Changes are the fields that change.
	Changes []FieldChange `json:"changes"`
	// Endpoint and Addresses are what was seen while waiting.
	Endpoint   string    `json:"endpoint,omitempty"`
	Addresses  []Address `json:"addresses,omitempty"`
	Problems   []string  `json:"problems,omitempty"`
	RolledBack bool      `json:"rolledBack,omitempty"`
	// Transition is what the new certificate waits for; absent when it is served.
	Transition *Transition `json:"transition,omitempty"`
	// Kubeconfigs are those of --kubeconfigs that lead to the endpoint.
	Kubeconfigs []File `json:"kubeconfigs,omitempty"`
	// SwitchedOff is true when the proxy is off, so that nobody is served.
	SwitchedOff bool `json:"switchedOff,omitempty"`
}

// Transition is a change of the certificate in which the old one is served, with the trust bundles of both, until no
// client breaks.
type Transition struct {
	Phase string    `json:"phase"`
	Since time.Time `json:"since"`
	// Until is when the new certificate is served in any case.
	Until *time.Time `json:"until,omitempty"`
	// WaitsFor are the IDs of the revisions whose clients do not verify the new certificate.
	WaitsFor []string `json:"waitsFor,omitempty"`
	// SecretName is the Secret of the new certificate; absent for the generated one.
	SecretName string `json:"secretName,omitempty"`
}

// Waits says what waits, for whom and until when.
func (t *Transition) Waits() string {
	text := "the generated certificate"
	if t.SecretName != "" {
		text = "the certificate in Secret " + t.SecretName
	}
	text += " waits"
	if len(t.WaitsFor) > 0 {
		text += " for clients of " + strings.Join(t.WaitsFor, ", ")
	}
	if t.Until != nil {
		text += ", until " + t.Until.Format(time.RFC3339) + " at the latest"
	}
	return text
}

// TransitionOf returns what the status of a CredentialIssuer says; nil when none is under way.
func TransitionOf(status *configv1alpha1.TransitionStatus) *Transition {
	if status == nil {
		return nil
	}
	t := &Transition{
		Phase: string(status.Phase), Since: status.Since.UTC(), WaitsFor: status.WaitsFor, SecretName: status.SecretName,
	}
	if status.Until != nil {
		until := status.Until.UTC()
		t.Until = &until
	}
	return t
}

// String tells it in one line.
func (t *Transition) String() string {
	return fmt.Sprintf("%s since %s: %s", t.Phase, t.Since.Format(time.RFC3339), t.Waits())
}

// FieldChange is one field that changes. A CA bundle is described in it, not shown.
type FieldChange struct {
	Field string `json:"field"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// SecretField begins the Field of a change in a Secret.
const SecretField = "secret/"

// OfSecret says whether it is a key of the Secret that changes.
func (c FieldChange) OfSecret() bool { return strings.HasPrefix(c.Field, SecretField) }

// DryRun says who was asked in a dry run.
type DryRun string

// Enum lists the dry runs.
func (DryRun) Enum() []string { return []string{"client", "server"} }
