package rotate

import (
	"fmt"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
)

var stepNames = map[int]string{
	rotation.StepAdvertise: "advertise the old and the new CA together",
	rotation.StepWait:      "wait until kubeconfigs are made anew",
	rotation.StepSwitch:    "put the new certificate in front",
	rotation.StepDrop:      "advertise the old CA no more",
}

// stateNames are the states of steps, for people.
var stateNames = map[result.StepState]string{
	result.StepDone: "done", result.StepNext: "next", result.StepToCome: "to come",
}

// Result is what `ip-tls rotate` prints for programs. The methods here fill it in.
type Result struct {
	result.Rotation
	namespace string // the agent's
}

// show fills in the phase and the steps of a rotation.
func (r *Result) show(record *rotation.Record) {
	r.Phase, r.Steps = result.Phase(record.Current()), nil
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
	r.OldCA, r.NewCA = result.BundleOf([]byte(record.OldCA)), result.BundleOf([]byte(record.NewCA))
	r.OldSecret, r.NewSecret = r.secret(record.OldSecret), nil
	if record.To != nil {
		r.NewSecret = r.secret(record.To.SecretName)
	}
	at := map[int]time.Time{
		rotation.StepAdvertise: record.Advertised, rotation.StepWait: record.Switched,
		rotation.StepSwitch: record.Switched, rotation.StepDrop: {},
	}
	if record.Phase == rotation.PhaseDone {
		at[rotation.StepDrop] = record.Ended
	}
	for number := rotation.StepAdvertise; number <= rotation.StepDrop; number++ {
		step := result.Step{Number: number, Name: stepNames[number], State: result.StepToCome, At: at[number]}
		switch {
		case !at[number].IsZero():
			step.State = result.StepDone
		case number == r.NextStep:
			step.State = result.StepNext
		}
		r.Steps = append(r.Steps, step)
	}
}

// secret returns the name of a Secret that a spec or a record holds; nil for none.
func (r *Result) secret(name string) *result.ObjectRef {
	full, err := delegation.SecretName(name, r.namespace)
	if err != nil || name == "" {
		return nil
	}
	ref := result.Ref(full)
	return &ref
}

// recordStep puts a step that is done into the result.
func (r *Result) recordStep(next *rotation.Record, dryRun string) {
	if dryRun == session.DryRunNone {
		r.show(next)
	}
	r.Outcome = map[rotation.Phase]result.Outcome{
		rotation.PhaseAdvertised: result.OutcomeAdvertised,
		rotation.PhaseSwitched:   result.OutcomeSwitched, rotation.PhaseDone: result.OutcomeFinished,
	}[next.Phase]
}

// recordFailure puts into the result how a step ended that has failed.
func (r *Result) recordFailure(err error, one *change.Result) {
	switch {
	case one != nil:
		r.Outcome = one.Outcome
	case ui.ExitCodeOf(err) == ui.ExitNotConverged:
		r.Outcome = result.OutcomeNotConverged
	}
}

func (r *Result) waits(format string, args ...any) {
	r.WaitsFor = append(r.WaitsFor, fmt.Sprintf(format, args...))
}

// printRotation writes the result to stdout, and returns err.
func (o *Options) printRotation(done *Result, err error) error {
	if done.Steps == nil {
		done.Steps = []result.Step{}
	}
	return o.Session.Print(&done.Rotation, err, func() ([]byte, error) { return o.rotationText(done) })
}

func (o *Options) rotationText(done *Result) ([]byte, error) {
	if done.Outcome == result.OutcomeRefused || done.Outcome == result.OutcomeNotConverged {
		return nil, nil // the step lines and the error have said it all
	}
	var out strings.Builder
	state := string(done.Outcome)
	switch {
	case done.Outcome == result.OutcomeShown && done.Phase == "":
		state = "no rotation"
	case done.Outcome == result.OutcomeShown && done.Aborting:
		state = "rotation on its way back"
	case done.Outcome == result.OutcomeShown:
		state = "rotation " + string(done.Phase)
	}
	if done.DryRun != "" {
		state += fmt.Sprintf(" (%s dry run)", done.DryRun)
	}
	fmt.Fprintf(&out, "credentialissuer/%s %s\n", done.CredentialIssuer, state)
	if len(done.Steps) == 0 {
		return []byte(out.String()), nil
	}
	rows := make([][]string, 0, len(done.Steps))
	for _, step := range done.Steps {
		at := ""
		if !step.At.IsZero() {
			at = step.At.Format(time.RFC3339)
		}
		rows = append(rows, []string{fmt.Sprint(step.Number), step.Name, stateNames[step.State], at})
	}
	if err := ui.Table(&out, []string{"step", "what", "state", "at"}, rows); err != nil {
		return nil, err
	}
	for _, one := range done.Changes {
		if o.Flags.Diff || done.DryRun != "" {
			change.WriteDiff(&out, one.Changes)
		}
	}
	to := "the agent's generated certificate"
	if done.NewSecret != nil {
		to = done.secretText(done.NewSecret)
	}
	fmt.Fprintf(&out, "from: %s, CA %s\nto: %s, CA %s\n", done.secretText(done.OldSecret), done.OldCA, to, done.NewCA)
	for _, what := range done.WaitsFor {
		fmt.Fprintf(&out, "waits for %s\n", what)
	}
	return []byte(out.String()), nil
}

// secretText names a Secret as a spec does: without the namespace when that is the agent's.
func (r *Result) secretText(ref *result.ObjectRef) string {
	switch {
	case ref == nil:
		return `Secret ""`
	case ref.Namespace == r.namespace:
		return fmt.Sprintf("Secret %q", ref.Name)
	default:
		return fmt.Sprintf("Secret %q", ref.Namespace+"/"+ref.Name)
	}
}
