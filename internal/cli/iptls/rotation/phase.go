package rotation

// The steps of a rotation. Step 2 changes nothing: it is the time in which users get new kubeconfigs.
const (
	StepAdvertise = 1
	StepWait      = 2
	StepSwitch    = 3
	StepDrop      = 4
)

// Phase is the state of a rotation after its last change.
type Phase string

// The phases of a rotation.
const (
	PhaseNone       Phase = ""           // none was begun
	PhaseAdvertised Phase = "advertised" // old certificate, both CAs
	PhaseSwitched   Phase = "switched"   // new certificate, both CAs
	PhaseDone       Phase = "done"       // new certificate, new CA
	PhaseAborted    Phase = "aborted"    // as before
)
