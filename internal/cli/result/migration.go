package result

// Migration lists what blocks the migration from Pinniped, or back to it.
type Migration struct {
	Head
	Back      bool               `json:"back"`                // true for the migration back to Pinniped
	Stage     MigrationStage     `json:"stage"`               // what is installed
	Namespace string             `json:"namespace,omitempty"` // where it is installed, and Image is the Deployment's image
	Image     string             `json:"image,omitempty"`
	InTheWay  bool               `json:"inTheWay"`       // true if a finding blocks the next step
	Next      string             `json:"next,omitempty"` // the next step, if nothing blocks it
	Findings  []MigrationFinding `json:"findings"`
}

// MigrationFinding is something that blocks the migration, is left over, or changes for some users.
type MigrationFinding struct {
	Reason   MigrationReason `json:"reason"`
	InTheWay bool            `json:"inTheWay"` // true if it blocks the next step
	Message  string          `json:"message"`  // the finding and its consequence
	// Objects are the affected objects as kubectl names them: RESOURCE.GROUP/NAME, after NAMESPACE/ if they have one.
	Objects []string `json:"objects,omitempty"`
	// Commands resolve the finding, in this order, in a POSIX shell.
	Commands []string `json:"commands,omitempty"`
}

// MigrationStage is what is installed.
type MigrationStage string

// The stages.
const (
	StageNone       MigrationStage = "None"       // neither Pinniped nor the agent is installed
	StagePinniped   MigrationStage = "Pinniped"   // the Deployment is Pinniped's
	StageRollingOut MigrationStage = "RollingOut" // the Deployment is the agent's, and not all of its pods are ready
	StageAgent      MigrationStage = "Agent"      // the agent is ready
)

// Enum lists the stages.
func (MigrationStage) Enum() []string {
	return enum(StageNone, StagePinniped, StageRollingOut, StageAgent)
}

// MigrationReason is the reason of a finding, in one word.
type MigrationReason string

// The reasons.
const (
	MigrationElsewhere          MigrationReason = "Elsewhere"          // not the namespace or name of the agent's manifest
	MigrationOwnedByDeployment  MigrationReason = "OwnedByDeployment"  // objects would be deleted with the Deployment
	MigrationFieldsOwned        MigrationReason = "FieldsOwned"        // a server-side apply would conflict
	MigrationManagedByKapp      MigrationReason = "ManagedByKapp"      // kapp owns objects
	MigrationAppliedByOthers    MigrationReason = "AppliedByOthers"    // a controller would restore what it has applied
	MigrationLoginsAtAPIServer  MigrationReason = "LoginsAtAPIServer"  // users log in without the impersonation proxy
	MigrationSettings           MigrationReason = "Settings"           // settings are not migrated
	MigrationRollingOut         MigrationReason = "RollingOut"         // not all pods are ready
	MigrationLeftOver           MigrationReason = "LeftOver"           // objects are no longer needed
	MigrationPrivileged         MigrationReason = "Privileged"         // the namespace permits more than the agent needs
	MigrationTransitionPrepared MigrationReason = "TransitionPrepared" // Pinniped would serve what the agent does not yet
	MigrationCertificateRefused MigrationReason = "CertificateRefused" // the agent refuses Pinniped's certificate
	MigrationClientsBroken      MigrationReason = "ClientsBroken"      // clients would not verify Pinniped's certificate
	MigrationUnknownStrategy    MigrationReason = "UnknownStrategy"    // Pinniped's CRD forbids a strategy in the status
)

// Enum lists the reasons.
func (MigrationReason) Enum() []string {
	return enum(MigrationElsewhere, MigrationOwnedByDeployment, MigrationFieldsOwned, MigrationManagedByKapp,
		MigrationAppliedByOthers, MigrationLoginsAtAPIServer, MigrationSettings, MigrationRollingOut, MigrationLeftOver,
		MigrationPrivileged, MigrationTransitionPrepared, MigrationCertificateRefused, MigrationClientsBroken,
		MigrationUnknownStrategy)
}
