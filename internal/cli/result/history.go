package result

import (
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// History is the result of `ip-tls history`: the revisions, and whether their clients verify the certificate.
type History struct {
	Head
	CredentialIssuer string        `json:"credentialIssuer"`
	At               time.Time     `json:"at"`
	Revisions        []ClientState `json:"revisions"`         // the published revisions, latest last
	Retired          string        `json:"retired,omitempty"` // the ID of the revision that this command has retired
	// NotKnown lists what could not be determined, with the reasons.
	NotKnown []string `json:"notKnown,omitempty"`
}

// ClientState is a revision, and whether its clients verify the current certificate.
type ClientState struct {
	ID string `json:"id"`
	// Since is when it was first published; absent if unknown. Until is when it was last published; absent while it is.
	Since *time.Time `json:"since,omitempty"`
	Until *time.Time `json:"until,omitempty"`
	// Retired is when an administrator declared that no kubeconfig has it any more. A retired revision is ignored.
	Retired  *time.Time `json:"retired,omitempty"`
	Endpoint string     `json:"endpoint"`
	// Secret is the Secret that was configured; absent for the generated certificate, or if unknown.
	Secret string `json:"secret,omitempty"`
	// By is the field manager that changed the configuration, and ChangedAt when it did so.
	By        string        `json:"by,omitempty"`
	ChangedAt *time.Time    `json:"changedAt,omitempty"`
	CABundle  CABundle      `json:"caBundle"`        // the CA bundle that its clients verify the proxy with
	Names     []string      `json:"names,omitempty"` // the DNS names and IP addresses that the certificate covered
	Outcome   ClientOutcome `json:"outcome"`
	// Code and Message are why its clients are refused.
	Code         certs.Code `json:"code,omitempty"`
	Message      string     `json:"message,omitempty"`
	RefusedNames []string   `json:"refusedNames,omitempty"` // the names that fail while others work
	RefusedSince *time.Time `json:"refusedSince,omitempty"` // when the failures began, if known
}

// Refused reports whether any client of the revision fails.
func (s *ClientState) Refused() bool {
	return s.Outcome == ClientsRefused || s.Outcome == ClientsPartlyRefused
}

// ClientOutcome says whether the clients of a revision verify the certificate.
type ClientOutcome string

// The outcomes.
const (
	ClientsWork          ClientOutcome = "work"
	ClientsRefused       ClientOutcome = "refused"
	ClientsPartlyRefused ClientOutcome = "partlyRefused" // for some addresses or names
	ClientsRetired       ClientOutcome = "retired"
	ClientsUnused        ClientOutcome = "unused"   // no client used it while it was published
	ClientsNotKnown      ClientOutcome = "notKnown" // no certificate is presented
)

// Enum lists the outcomes.
func (ClientOutcome) Enum() []string {
	return enum(ClientsWork, ClientsRefused, ClientsPartlyRefused, ClientsRetired, ClientsUnused, ClientsNotKnown)
}
