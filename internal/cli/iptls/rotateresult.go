package iptls

import (
	"fmt"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// What `ip-tls rotate` did, besides what the other commands do.
const (
	actionAdvertised = "advertised"
	actionSwitched   = "switched"
	actionFinished   = "finished"
	actionWaiting    = "waiting"
	actionAborted    = "aborted"
	actionForgotten  = "forgotten"
	actionStatus     = "status"
)

var stepNames = map[int]string{
	stepAdvertise: "advertise the old and the new CA together",
	stepWait:      "wait until kubeconfigs are made anew",
	stepSwitch:    "put the new certificate in front",
	stepDrop:      "advertise the old CA no more",
}

// RotateResult is what `ip-tls rotate` prints with `-o json` and `-o yaml`. Scripts rely on its fields.
type RotateResult struct {
	// Action is "advertised", "switched", "finished", "waiting", "unchanged", "aborted", "forgotten", "status", "refused" or
	// "not converged".
	Action           string `json:"action"`
	DryRun           string `json:"dryRun,omitempty"`
	CredentialIssuer string `json:"credentialIssuer"`
	// Phase is "advertised", "switched", "done" or "aborted"; empty when no rotation was begun.
	Phase string `json:"phase"`
	// Aborting is true on the way back.
	Aborting bool `json:"aborting,omitempty"`
	// NextStep is the step that comes next; 0 when there is none.
	NextStep int            `json:"nextStep"`
	Steps    []RotationStep `json:"steps"`
	// OldSecret and NewSecret hold the certificates; NewSecret is empty for the agent's generated one.
	OldSecret string `json:"oldSecret,omitempty"`
	NewSecret string `json:"newSecret,omitempty"`
	// OldCA and NewCA describe what clients verify them with.
	OldCA string `json:"oldCA,omitempty"`
	NewCA string `json:"newCA,omitempty"`
	// WaitsFor says what must be true before step 3, DueAt when it is time as far as --after is concerned.
	WaitsFor    []string          `json:"waitsFor,omitempty"`
	DueAt       *time.Time        `json:"dueAt,omitempty"`
	Kubeconfigs []KubeconfigTrust `json:"kubeconfigs,omitempty"`
	// Edited are the fields that somebody else has changed.
	Edited []string `json:"edited,omitempty"`
	// Changes are the results of the steps that this run did, in their order.
	Changes []*Result `json:"changes,omitempty"`
}

// RotationStep is one step of a rotation.
type RotationStep struct {
	Number int    `json:"number"`
	Name   string `json:"name"`
	// State is "done", "next" or "to come".
	State string    `json:"state"`
	At    time.Time `json:"at,omitzero"`
}

// show fills in where a rotation is.
func (r *RotateResult) show(rotation *rotation) {
	r.Phase, r.Steps = string(rotation.phase()), nil
	if rotation == nil {
		return
	}
	r.Aborting = rotation.Aborting
	r.NextStep = rotation.next()
	if rotation.Phase == phaseAdvertised {
		r.NextStep = stepWait
	}
	if rotation.Phase == phaseAborted || rotation.Aborting {
		r.NextStep = 0
	}
	r.OldSecret, r.OldCA, r.NewCA = rotation.OldSecret, describePEM([]byte(rotation.OldCA)), describePEM([]byte(rotation.NewCA))
	if rotation.To != nil {
		r.NewSecret = rotation.To.SecretName
	}
	at := map[int]time.Time{stepAdvertise: rotation.Advertised, stepWait: rotation.Switched, stepSwitch: rotation.Switched, stepDrop: {}}
	if rotation.Phase == phaseDone {
		at[stepDrop] = rotation.Ended
	}
	for number := stepAdvertise; number <= stepDrop; number++ {
		step := RotationStep{Number: number, Name: stepNames[number], State: "to come", At: at[number]}
		switch {
		case !at[number].IsZero():
			step.State = "done"
		case number == r.NextStep:
			step.State = "next"
		}
		r.Steps = append(r.Steps, step)
	}
}

// did notes that a step is done.
func (r *RotateResult) did(next *rotation, dryRun string) {
	if dryRun == dryRunNone {
		r.show(next)
	}
	r.Action = map[phase]string{phaseAdvertised: actionAdvertised, phaseSwitched: actionSwitched, phaseDone: actionFinished}[next.Phase]
}

// fail notes how a step ended that did not get there.
func (r *RotateResult) fail(err error, one *Result) {
	switch {
	case one != nil:
		r.Action = one.Action
	case ui.ExitCodeOf(err) == ui.ExitNotConverged:
		r.Action = actionNotConverged
	}
}

func (r *RotateResult) waits(format string, args ...any) {
	r.WaitsFor = append(r.WaitsFor, fmt.Sprintf(format, args...))
}

func (o *RotateOptions) printRotation(result *RotateResult) error {
	if result.Steps == nil {
		result.Steps = []RotationStep{}
	}
	return o.write(result, func() ([]byte, error) { return o.rotationText(result) })
}

func (o *RotateOptions) rotationText(result *RotateResult) ([]byte, error) {
	if result.Action == actionRefused || result.Action == actionNotConverged {
		return nil, nil // the step lines and the error have said it all
	}
	var out strings.Builder
	state := result.Action
	switch {
	case result.Action == actionStatus && result.Phase == "":
		state = "no rotation"
	case result.Action == actionStatus && result.Aborting:
		state = "rotation on its way back"
	case result.Action == actionStatus:
		state = "rotation " + result.Phase
	}
	if result.DryRun != "" {
		state += fmt.Sprintf(" (%s dry run)", result.DryRun)
	}
	fmt.Fprintf(&out, "credentialissuer/%s %s\n", result.CredentialIssuer, state)
	if len(result.Steps) == 0 {
		return []byte(out.String()), nil
	}
	rows := make([][]string, 0, len(result.Steps))
	for _, step := range result.Steps {
		at := ""
		if !step.At.IsZero() {
			at = step.At.Format(time.RFC3339)
		}
		rows = append(rows, []string{fmt.Sprint(step.Number), step.Name, step.State, at})
	}
	if err := ui.Table(&out, []string{"step", "what", "state", "at"}, rows); err != nil {
		return nil, err
	}
	for _, change := range result.Changes {
		if o.Diff || result.DryRun != "" {
			writeDiff(&out, change.Changes)
		}
	}
	to := "the agent's generated certificate"
	if result.NewSecret != "" {
		to = fmt.Sprintf("Secret %q", result.NewSecret)
	}
	fmt.Fprintf(&out, "from: Secret %q, CA %s\nto: %s, CA %s\n", result.OldSecret, result.OldCA, to, result.NewCA)
	for _, what := range result.WaitsFor {
		fmt.Fprintf(&out, "waits for %s\n", what)
	}
	return []byte(out.String()), nil
}
