package result

import (
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// History is the result of `ip-tls history`.
type History struct {
	Head
	CredentialIssuer string `json:"credentialIssuer"`
	// Changes are the last ones by ip-tls, the newest first.
	Changes []NotedChange `json:"changes"`
}

// NotedChange is one change by ip-tls.
type NotedChange struct {
	At      time.Time `json:"at"`
	Command string    `json:"command"`
	// By is the name of the user, as the API server saw it; absent when it did not tell.
	By string `json:"by,omitempty"`
	// Secret is the one that the change has left configured; absent for the generated certificate.
	Secret           *ObjectRef                            `json:"secret,omitempty"`
	ExternalEndpoint string                                `json:"externalEndpoint,omitempty"`
	Mode             configv1alpha1.ImpersonationProxyMode `json:"mode,omitempty"`
	Outcome          ChangeOutcome                         `json:"outcome"`
}

// ChangeOutcome is what came of a change.
type ChangeOutcome string

// The outcomes of a change.
const (
	// ChangeUnknown means that the command did not wait for it, was interrupted, or still waits.
	ChangeUnknown ChangeOutcome = "unknown"
	// ChangeInEffect means that the endpoint presented the certificate.
	ChangeInEffect ChangeOutcome = "inEffect"
	// ChangeNotInEffect means that it did not take effect, and was left in place.
	ChangeNotInEffect ChangeOutcome = "notInEffect"
	// ChangePutBack means that it did not take effect, and the previous configuration was put back.
	ChangePutBack ChangeOutcome = "putBack"
)

// Enum lists the outcomes.
func (ChangeOutcome) Enum() []string {
	return []string{
		string(ChangeUnknown), string(ChangeInEffect), string(ChangeNotInEffect), string(ChangePutBack),
	}
}
