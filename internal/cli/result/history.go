package result

import (
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// History is the result of `ip-tls history`: revisions, and whether their clients verify the certificate.
type History struct {
	Head
	CredentialIssuer string    `json:"credentialIssuer"`
	At               time.Time `json:"at"`
	// Revisions are what was published, the latest last.
	Revisions []ClientState `json:"revisions"`
	// Retired is the id of the state that this command has retired.
	Retired string `json:"retired,omitempty"`
	// NotKnown names what could not be found out, each with the reason.
	NotKnown []string `json:"notKnown,omitempty"`
}

// ClientState is a revision, and whether its clients verify the certificate in service.
type ClientState struct {
	ID string `json:"id"`
	// Since is when it was published first; absent when that is not known. Until is when it was published last; absent
	// while it is.
	Since *time.Time `json:"since,omitempty"`
	Until *time.Time `json:"until,omitempty"`
	// Retired is when an administrator said that no kubeconfig has it any more. Such a state counts for nothing.
	Retired  *time.Time `json:"retired,omitempty"`
	Endpoint string     `json:"endpoint"`
	// Secret is the one that was configured; absent for the generated certificate, and where that is not known.
	Secret string `json:"secret,omitempty"`
	// By is the field manager that changed the configuration, ChangedAt when.
	By        string     `json:"by,omitempty"`
	ChangedAt *time.Time `json:"changedAt,omitempty"`
	// CABundle is what they verify the proxy with.
	CABundle CABundle `json:"caBundle"`
	// Names are the DNS names and IP addresses that the certificate in service covered.
	Names   []string      `json:"names,omitempty"`
	Outcome ClientOutcome `json:"outcome"`
	// Code and Message say why they are refused.
	Code    certs.Code `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
	// RefusedNames are the names by which they are refused, where others work.
	RefusedNames []string `json:"refusedNames,omitempty"`
	// RefusedSince is when they began to be refused, where that is known.
	RefusedSince *time.Time `json:"refusedSince,omitempty"`
}

// Refused says whether any of these clients is refused.
func (s *ClientState) Refused() bool {
	return s.Outcome == ClientsRefused || s.Outcome == ClientsPartlyRefused
}

// ClientOutcome is how the clients with a state fare.
type ClientOutcome string

// The outcomes.
const (
	ClientsWork          ClientOutcome = "work"
	ClientsRefused       ClientOutcome = "refused"
	ClientsPartlyRefused ClientOutcome = "partlyRefused" // at some addresses, or by some names
	ClientsRetired       ClientOutcome = "retired"
	ClientsUnused        ClientOutcome = "unused"   // no client used it while it was published
	ClientsNotKnown      ClientOutcome = "notKnown" // no certificate is presented that could be verified
)

// Enum lists the outcomes.
func (ClientOutcome) Enum() []string {
	return []string{
		string(ClientsWork), string(ClientsRefused), string(ClientsPartlyRefused), string(ClientsRetired),
		string(ClientsUnused),
		string(ClientsNotKnown),
	}
}
