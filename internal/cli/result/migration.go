package result

// Migration lists what blocks the migration from Pinniped, or back to it.
type Migration struct {
	Head
	// Back is true for the migration back to Pinniped.
	Back bool `json:"back"`
	// Stage is what is installed.
	Stage MigrationStage `json:"stage"`
	// Namespace is where it is installed, and Image is the Deployment's image.
	Namespace string `json:"namespace,omitempty"`
	Image     string `json:"image,omitempty"`
	// InTheWay is true if a finding blocks the next step.
	InTheWay bool `json:"inTheWay"`
	// Next is the next step, if nothing blocks it.
	Next     string             `json:"next,omitempty"`
	Findings []MigrationFinding `json:"findings"`
}

// MigrationFinding is something that blocks the migration, is left over, or changes for some users.
type MigrationFinding struct {
	Reason MigrationReason `json:"reason"`
	// InTheWay is true if it blocks the next step.
	InTheWay bool `json:"inTheWay"`
	// Message is the finding and its consequence.
	Message string `json:"message"`
	// Objects are the affected objects as kubectl names them: RESOURCE.GROUP/NAME, after NAMESPACE/ if they have one.
	Objects []string `json:"objects,omitempty"`
	// Commands resolve the finding, in this order, in a POSIX shell.
	Commands []string `json:"commands,omitempty"`
}

// MigrationStage is what is installed.
type MigrationStage string

// The stages.
const (
	// StageNone means that neither Pinniped nor the agent is installed.
	StageNone MigrationStage = "None"
	// StagePinniped means that the Deployment is Pinniped's.
	StagePinniped MigrationStage = "Pinniped"
	// StageRollingOut means that the Deployment is the agent's, and not all of its pods are ready.
	StageRollingOut MigrationStage = "RollingOut"
	// StageAgent means that the agent is ready.
	StageAgent MigrationStage = "Agent"
)

// Enum lists the stages.
func (MigrationStage) Enum() []string {
	return []string{string(StageNone), string(StagePinniped), string(StageRollingOut), string(StageAgent)}
}

// MigrationReason is the reason of a finding, in one word.
type MigrationReason string

// The reasons.
const (
	// MigrationElsewhere means that Pinniped's namespace or name is not that of the agent's manifests.
	MigrationElsewhere MigrationReason = "Elsewhere"
	// MigrationOwnedByDeployment means that objects would be deleted together with the Deployment.
	MigrationOwnedByDeployment MigrationReason = "OwnedByDeployment"
	// MigrationFieldsOwned means that a server-side apply would conflict.
	MigrationFieldsOwned MigrationReason = "FieldsOwned"
	// MigrationManagedByKapp means that kapp owns objects.
	MigrationManagedByKapp MigrationReason = "ManagedByKapp"
	// MigrationAppliedByOthers means that a controller would restore what it has applied.
	MigrationAppliedByOthers MigrationReason = "AppliedByOthers"
	// MigrationLoginsAtAPIServer means that users log in without the impersonation proxy.
	MigrationLoginsAtAPIServer MigrationReason = "LoginsAtAPIServer"
	// MigrationSettings means that settings are not migrated.
	MigrationSettings MigrationReason = "Settings"
	// MigrationRollingOut means that not all pods are ready.
	MigrationRollingOut MigrationReason = "RollingOut"
	// MigrationLeftOver means that objects are no longer needed.
	MigrationLeftOver MigrationReason = "LeftOver"
	// MigrationPrivileged means that the namespace permits more than the agent needs.
	MigrationPrivileged MigrationReason = "Privileged"
	// MigrationTransitionPrepared means that the agent does not serve a renewed certificate yet, and Pinniped would.
	MigrationTransitionPrepared MigrationReason = "TransitionPrepared"
	// MigrationCertificateRefused means that the agent refuses the certificate that Pinniped serves.
	MigrationCertificateRefused MigrationReason = "CertificateRefused"
	// MigrationClientsBroken means that clients of the agent would not verify what Pinniped serves.
	MigrationClientsBroken MigrationReason = "ClientsBroken"
	// MigrationUnknownStrategy means that the status has a strategy that Pinniped's CRD does not permit.
	MigrationUnknownStrategy MigrationReason = "UnknownStrategy"
)

// Enum lists the reasons.
func (MigrationReason) Enum() []string {
	return []string{
		string(MigrationElsewhere), string(MigrationOwnedByDeployment), string(MigrationFieldsOwned),
		string(MigrationManagedByKapp), string(MigrationAppliedByOthers), string(MigrationLoginsAtAPIServer),
		string(MigrationSettings), string(MigrationRollingOut), string(MigrationLeftOver), string(MigrationPrivileged),
		string(MigrationTransitionPrepared), string(MigrationCertificateRefused), string(MigrationClientsBroken),
		string(MigrationUnknownStrategy),
	}
}
