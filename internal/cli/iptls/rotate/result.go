package rotate

import (
	"fmt"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// The actions of `ip-tls rotate`, besides those of package change.
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
	rotation.StepAdvertise: "advertise the old and the new CA together",
	rotation.StepWait:      "wait until kubeconfigs are made anew",
	rotation.StepSwitch:    "put the new certificate in front",
	rotation.StepDrop:      "advertise the old CA no more",
}

// Result is what `ip-tls rotate` prints with `-o json` and `-o yaml`. Scripts rely on its fields.
type Result struct {
	// Action is "advertised", "switched", "finished", "waiting", "unchanged", "aborted", "forgotten", "status",
	// "refused" or "not converged".
	Action           string `json:"action"`
	DryRun           string `json:"dryRun,omitempty"`
	CredentialIssuer string `json:"credentialIssuer"`
	// Phase is "advertised", "switched", "done" or "aborted"; empty when no rotation was begun.
	Phase string `json:"phase"`
	// Aborting is true on the way back.
	Aborting bool `json:"aborting,omitempty"`
	// NextStep is the step that comes next; 0 when there is none.
	NextStep int    `json:"nextStep"`
	Steps    []Step `json:"steps"`
	// OldSecret and NewSecret hold the certificates; NewSecret is empty for the agent's generated one.
	OldSecret string `json:"oldSecret,omitempty"`
	NewSecret string `json:"newSecret,omitempty"`
	// OldCA and NewCA describe what clients verify them with.
	OldCA string `json:"oldCA,omitempty"`
	NewCA string `json:"newCA,omitempty"`
	// WaitsFor lists the preconditions of step 3 that do not hold yet. DueAt is when --after has passed.
	WaitsFor    []string          `json:"waitsFor,omitempty"`
	DueAt       *time.Time        `json:"dueAt,omitempty"`
	Kubeconfigs []KubeconfigTrust `json:"kubeconfigs,omitempty"`
	// Edited are the fields that somebody else has changed.
	Edited []string `json:"edited,omitempty"`
	// Changes are the results of the steps that this run did, in their order.
	Changes []*change.Result `json:"changes,omitempty"`
}

// Step is one step of a rotation.
type Step struct {
	Number int    `json:"number"`
	Name   string `json:"name"`
	// State is "done", "next" or "to come".
	State string    `json:"state"`
	At    time.Time `json:"at,omitzero"`
}

// show fills in the phase and the steps of a rotation.
func (r *Result) show(record *rotation.Record) {
	r.Phase, r.Steps = string(record.Current()), nil
	if record == nil {
		return
	}
	r.Aborting = record.Aborting
	r.NextStep = record.Next()
	if record.Phase == rotation.PhaseAdvertised {
		r.NextStep = rotation.StepWait
	}
	if record.Phase == rotation.PhaseAborted || record.Aborting {
		r.NextStep = 0
	}
	r.OldSecret, r.OldCA, r.NewCA = record.OldSecret, plan.DescribePEM([]byte(record.OldCA)),
		plan.DescribePEM([]byte(record.NewCA))
	if record.To != nil {
		r.NewSecret = record.To.SecretName
	}
	at := map[int]time.Time{
		rotation.StepAdvertise: record.Advertised, rotation.StepWait: record.Switched,
		rotation.StepSwitch: record.Switched, rotation.StepDrop: {},
	}
	if record.Phase == rotation.PhaseDone {
		at[rotation.StepDrop] = record.Ended
	}
	for number := rotation.StepAdvertise; number <= rotation.StepDrop; number++ {
		step := Step{Number: number, Name: stepNames[number], State: "to come", At: at[number]}
		switch {
		case !at[number].IsZero():
			step.State = "done"
		case number == r.NextStep:
			step.State = "next"
		}
		r.Steps = append(r.Steps, step)
	}
}

// recordStep puts a step that is done into the result.
func (r *Result) recordStep(next *rotation.Record, dryRun string) {
	if dryRun == session.DryRunNone {
		r.show(next)
	}
	r.Action = map[rotation.Phase]string{
		rotation.PhaseAdvertised: actionAdvertised,
		rotation.PhaseSwitched:   actionSwitched, rotation.PhaseDone: actionFinished,
	}[next.Phase]
}

// recordFailure puts into the result how a step ended that has failed.
func (r *Result) recordFailure(err error, one *change.Result) {
	switch {
	case one != nil:
		r.Action = one.Action
	case ui.ExitCodeOf(err) == ui.ExitNotConverged:
		r.Action = change.ActionNotConverged
	}
}

func (r *Result) waits(format string, args ...any) {
	r.WaitsFor = append(r.WaitsFor, fmt.Sprintf(format, args...))
}

func (o *Options) printRotation(result *Result) error {
	if result.Steps == nil {
		result.Steps = []Step{}
	}
	return o.Session.Write(result, func() ([]byte, error) { return o.rotationText(result) })
}

func (o *Options) rotationText(result *Result) ([]byte, error) {
	if result.Action == change.ActionRefused || result.Action == change.ActionNotConverged {
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
	for _, one := range result.Changes {
		if o.Flags.Diff || result.DryRun != "" {
			change.WriteDiff(&out, one.Changes)
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
