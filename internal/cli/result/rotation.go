package result

import "time"

// Rotation is how far the exchange of a CA has come.
type Rotation struct {
	Head
	// Outcome is what this run has done.
	Outcome          Outcome `json:"outcome"`
	DryRun           DryRun  `json:"dryRun,omitempty"`
	CredentialIssuer string  `json:"credentialIssuer"`
	// Phase is absent when no rotation was begun.
	Phase Phase `json:"phase,omitempty"`
	// Aborting is true on the way back.
	Aborting bool `json:"aborting,omitempty"`
	// NextStep is the step that comes next; 0 when there is none.
	NextStep int    `json:"nextStep"`
	Steps    []Step `json:"steps"`
	// OldSecret and NewSecret hold the certificates; absent for the agent's generated one.
	OldSecret *ObjectRef `json:"oldSecret,omitempty"`
	NewSecret *ObjectRef `json:"newSecret,omitempty"`
	// OldCA and NewCA are what clients verify them with.
	OldCA CABundle `json:"oldCA,omitzero"`
	NewCA CABundle `json:"newCA,omitzero"`
	// WaitsFor lists the preconditions of step 3 that do not hold yet. DueAt is when --after has passed.
	WaitsFor    []string   `json:"waitsFor,omitempty"`
	DueAt       *time.Time `json:"dueAt,omitempty"`
	Kubeconfigs []File     `json:"kubeconfigs,omitempty"`
	// Edited are the fields that somebody else has changed.
	Edited []string `json:"edited,omitempty"`
	// Changes are the results of the steps that this run did, in their order.
	Changes []*Change `json:"changes,omitempty"`
}

// Phase is how far a rotation has come.
type Phase string

// Enum lists the phases.
func (Phase) Enum() []string { return []string{"advertised", "switched", "done", "aborted"} }

// Step is one step of a rotation.
type Step struct {
	Number int       `json:"number"`
	Name   string    `json:"name"`
	State  StepState `json:"state"`
	At     time.Time `json:"at,omitzero"`
}

// StepState says whether a step is done.
type StepState string

// The states.
const (
	StepDone   StepState = "done"
	StepNext   StepState = "next"
	StepToCome StepState = "toCome"
)

// Enum lists the states.
func (StepState) Enum() []string {
	return []string{string(StepDone), string(StepNext), string(StepToCome)}
}
