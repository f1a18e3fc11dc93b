package result

import (
	"fmt"
	"strings"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Change is the result of a command that changes the serving certificate.
type Change struct {
	Head
	Outcome          Outcome `json:"outcome"`
	DryRun           DryRun  `json:"dryRun,omitempty"` // set if nothing was changed
	CredentialIssuer string  `json:"credentialIssuer"` // empty if files were rejected before the cluster was asked
	// Secret is the configured Secret, or the one configured until now; absent for the generated certificate.
	Secret      *ObjectRef   `json:"secret,omitempty"`
	Certificate certs.Report `json:"certificate"`
	// CABundle is the CA bundle for clients; absent if the agent has yet to create a CA.
	CABundle CABundle      `json:"caBundle,omitzero"`
	Changes  []FieldChange `json:"changes"`
	// Endpoint and Addresses are what the command observed while waiting.
	Endpoint   string    `json:"endpoint,omitempty"`
	Addresses  []Address `json:"addresses,omitempty"`
	Problems   []string  `json:"problems,omitempty"`
	RolledBack bool      `json:"rolledBack,omitempty"`
	// Transition is why the new certificate is not served yet; absent if it is served.
	Transition  *Transition `json:"transition,omitempty"`
	Kubeconfigs []File      `json:"kubeconfigs,omitempty"` // those of --kubeconfigs that use the endpoint
	SwitchedOff bool        `json:"switchedOff,omitempty"`
}

// Transition is a change of the certificate during which the old one is served with dual trust, until no client breaks.
type Transition struct {
	Phase    string     `json:"phase"`
	Since    time.Time  `json:"since"`
	Until    *time.Time `json:"until,omitempty"`    // when the new certificate is served at the latest
	WaitsFor []string   `json:"waitsFor,omitempty"` // the IDs of revisions whose clients do not verify the new certificate
	// SecretName is the Secret of the new certificate; absent for the generated certificate.
	SecretName string `json:"secretName,omitempty"`
}

// Waits describes what waits, for which revisions and until when.
func (t *Transition) Waits() string {
	text := "the generated certificate"
	if t.SecretName != "" {
		text = "the certificate in Secret " + t.SecretName
	}
	text += " waits"
	if len(t.WaitsFor) > 0 {
		revisions := "revision "
		if len(t.WaitsFor) > 1 {
			revisions = "revisions "
		}
		text += " for clients of " + revisions + strings.Join(t.WaitsFor, ", ")
	}
	if t.Until != nil {
		text += ", until " + t.Until.Format(time.RFC3339) + " at the latest"
	}
	return text
}

// TransitionOf returns the transition in the status of a CredentialIssuer, or nil.
func TransitionOf(status *configv1alpha1.TransitionStatus) *Transition {
	if status == nil {
		return nil
	}
	t := &Transition{
		Phase: string(status.Phase), Since: status.Since.UTC(), WaitsFor: status.WaitsFor, SecretName: status.SecretName,
	}
	if status.Until != nil {
		t.Until = new(status.Until.UTC())
	}
	return t
}

// String returns the transition in one line.
func (t *Transition) String() string {
	return fmt.Sprintf("%s since %s: %s", t.Phase, t.Since.Format(time.RFC3339), t.Waits())
}

// FieldChange is a changed field. For a CA bundle, From and To are descriptions.
type FieldChange struct {
	Field string `json:"field"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// SecretField is the prefix of Field for a change in a Secret.
const SecretField = "secret/"

// OfSecret reports whether the change is in the Secret.
func (c FieldChange) OfSecret() bool { return strings.HasPrefix(c.Field, SecretField) }

// DryRun says who checked the change in a dry run.
type DryRun string

// Enum lists the dry runs.
func (DryRun) Enum() []string { return []string{"client", "server"} }
