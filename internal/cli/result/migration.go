package result

// Migration says what stands in the way of taking over from Pinniped, or of going back to it.
type Migration struct {
	Head
	// Back is true when it is about the way back to Pinniped.
	Back bool `json:"back"`
	// Stage says what is installed.
	Stage MigrationStage `json:"stage"`
	// Namespace is where it is installed, and Image what the Deployment runs.
	Namespace string `json:"namespace,omitempty"`
	Image     string `json:"image,omitempty"`
	// InTheWay is true when a finding has to be dealt with before the next step.
	InTheWay bool `json:"inTheWay"`
	// Next is the next step, when nothing stands in the way.
	Next     string             `json:"next,omitempty"`
	Findings []MigrationFinding `json:"findings"`
}

// MigrationFinding is one thing that stands in the way, is left over, or changes for somebody.
type MigrationFinding struct {
	Reason MigrationReason `json:"reason"`
	// InTheWay is true when it has to be dealt with before the next step.
	InTheWay bool `json:"inTheWay"`
	// Message says what was found, and what follows from it.
	Message string `json:"message"`
	// Objects are those that it is about, in kubectl's words: RESOURCE.GROUP/NAME, with NAMESPACE/ in front where there is one.
	Objects []string `json:"objects,omitempty"`
	// Commands deal with it, one after the other, in a POSIX shell.
	Commands []string `json:"commands,omitempty"`
}

// MigrationStage says what is installed.
type MigrationStage string

// The stages.
const (
	// StageNone means that neither is installed.
	StageNone MigrationStage = "None"
	// StagePinniped means that the Deployment is Pinniped's.
	StagePinniped MigrationStage = "Pinniped"
	// StageRollingOut means that the Deployment is the agent's, and that its pods do not all serve yet.
	StageRollingOut MigrationStage = "RollingOut"
	// StageAgent means that the agent serves.
	StageAgent MigrationStage = "Agent"
)

// Enum lists the stages.
func (MigrationStage) Enum() []string {
	return []string{string(StageNone), string(StagePinniped), string(StageRollingOut), string(StageAgent)}
}

// MigrationReason is what was found, in one word.
type MigrationReason string

// The reasons.
const (
	// MigrationElsewhere means that Pinniped has another namespace or name than the agent's manifests.
	MigrationElsewhere MigrationReason = "Elsewhere"
	// MigrationOwnedByDeployment means that objects would be deleted together with the Deployment.
	MigrationOwnedByDeployment MigrationReason = "OwnedByDeployment"
	// MigrationFieldsOwned means that a server-side apply would end in a conflict.
	MigrationFieldsOwned MigrationReason = "FieldsOwned"
	// MigrationManagedByKapp means that kapp takes objects for its own.
	MigrationManagedByKapp MigrationReason = "ManagedByKapp"
	// MigrationAppliedByOthers means that a controller would put back what it has applied.
	MigrationAppliedByOthers MigrationReason = "AppliedByOthers"
	// MigrationLoginsAtAPIServer means that users log in without the impersonation proxy.
	MigrationLoginsAtAPIServer MigrationReason = "LoginsAtAPIServer"
	// MigrationSettings means that settings are not taken over.
	MigrationSettings MigrationReason = "Settings"
	// MigrationRollingOut means that the pods do not all serve yet.
	MigrationRollingOut MigrationReason = "RollingOut"
	// MigrationLeftOver means that objects are not needed any more.
	MigrationLeftOver MigrationReason = "LeftOver"
	// MigrationPrivileged means that the namespace permits more than is needed.
	MigrationPrivileged MigrationReason = "Privileged"
	// MigrationTransitionPrepared means that the agent waits with a renewed certificate that Pinniped serves at once.
	MigrationTransitionPrepared MigrationReason = "TransitionPrepared"
	// MigrationCertificateRefused means that the agent refuses the certificate that Pinniped serves.
	MigrationCertificateRefused MigrationReason = "CertificateRefused"
	// MigrationClientsLockedOut means that clients who work with the agent would not with what Pinniped serves.
	MigrationClientsLockedOut MigrationReason = "ClientsLockedOut"
	// MigrationUnknownStrategy means that the status has something in it that Pinniped refuses.
	MigrationUnknownStrategy MigrationReason = "UnknownStrategy"
)

// Enum lists the reasons.
func (MigrationReason) Enum() []string {
	return []string{
		string(MigrationElsewhere), string(MigrationOwnedByDeployment), string(MigrationFieldsOwned),
		string(MigrationManagedByKapp), string(MigrationAppliedByOthers), string(MigrationLoginsAtAPIServer),
		string(MigrationSettings), string(MigrationRollingOut), string(MigrationLeftOver), string(MigrationPrivileged),
		string(MigrationTransitionPrepared), string(MigrationCertificateRefused), string(MigrationClientsLockedOut),
		string(MigrationUnknownStrategy),
	}
}
