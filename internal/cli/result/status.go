package result

import (
	"fmt"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Status is the state of the impersonation proxy's certificate: configured, reported by the agent, and presented.
type Status struct {
	Head
	CredentialIssuer string    `json:"credentialIssuer,omitempty"` // absent if the cluster could not be asked
	At               time.Time `json:"at"`
	// Users says whether users can connect, which matters most.
	Users    Users `json:"users"`
	InEffect bool  `json:"inEffect"` // true if the agent reports, and every address presents, what is configured
	// Problems are why InEffect is false, most significant first. Each cause is listed once.
	Problems   []Problem         `json:"problems,omitempty"`
	Configured *ConfiguredStatus `json:"configured,omitempty"` // absent if the cluster could not be asked
	Agent      *AgentStatus      `json:"agent,omitempty"`
	Published  *PublishedStatus  `json:"published,omitempty"`
	Transition *Transition       `json:"transition,omitempty"`
	// Certificate is the configured certificate if it can be read, else the presented one.
	Certificate *CertificateStatus `json:"certificate,omitempty"`
	RenewedBy   *Renewer           `json:"renewedBy,omitempty"`
	Replicas    *ReplicaStatus     `json:"replicas,omitempty"`
	// Addresses are the certificates that the addresses of the endpoint present now.
	Addresses []Address `json:"addresses,omitempty"`
	// Clients are the revisions, latest last, and whether their clients verify the current certificate.
	Clients []ClientState `json:"clients,omitempty"`
	// Kubeconfigs are the kubeconfigs with contexts that use the endpoint; the entries are these contexts.
	Kubeconfigs []File `json:"kubeconfigs,omitempty"`
	// NotKnown lists what could not be determined, with the reasons.
	NotKnown []string `json:"notKnown,omitempty"`
}

// Users says whether users can connect to the endpoint now.
type Users struct {
	State UsersState `json:"state"`
	Since *time.Time `json:"since,omitempty"` // when the failures began, if known
	Until *time.Time `json:"until,omitempty"` // when the first of the presented certificates expires
	// Code is the reason in one word, if there is one: a code of a check or of an agent's finding.
	Code    string `json:"code,omitempty"`
	Message string `json:"message"` // the first line of the text output
	// Next lists the commands to run next.
	Next []string `json:"next,omitempty"`
}

// UsersState says which users can connect.
type UsersState string

// The states.
const (
	UsersNotAffected UsersState = "notAffected"
	UsersSomeRefused UsersState = "someRefused" // at some addresses, by some names, or with some kubeconfigs
	UsersAllRefused  UsersState = "allRefused"  // or there is no response
	UsersSwitchedOff UsersState = "switchedOff" // the impersonation proxy is disabled
	UsersNotKnown    UsersState = "notKnown"
)

// Enum lists the states.
func (UsersState) Enum() []string {
	return enum(UsersNotAffected, UsersSomeRefused, UsersAllRefused, UsersSwitchedOff, UsersNotKnown)
}

// Problem is one problem.
type Problem struct {
	Code    string `json:"code,omitempty"` // the code of a check or of an agent's finding; absent if there is none
	Message string `json:"message"`
}

// ConfiguredStatus is the configuration in the CredentialIssuer's spec.
type ConfiguredStatus struct {
	// Mode and Verification are copied from the spec.
	Mode         string                         `json:"mode"`
	Source       Source                         `json:"source"` // "secret" or "generated"
	Secret       *ObjectRef                     `json:"secret,omitempty"`
	Verification configv1alpha1.TLSVerification `json:"verification,omitempty"`
	// CABundle is the CA bundle in the spec; absent if that of the Secret, or none, is published.
	CABundle CABundle `json:"caBundle,omitzero"`
	// CABundleSource is the object from which the agent takes the CA bundle; absent if there is none.
	CABundleSource   string `json:"caBundleSource,omitempty"`
	ExternalEndpoint string `json:"externalEndpoint,omitempty"`
	LoadBalancerIP   string `json:"loadBalancerIP,omitempty"`
}

// AgentStatus is the agent's report about the proxy. Status and reason are copied from the CredentialIssuer's status.
type AgentStatus struct {
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Running says whether a replica of the agent is alive, according to the replicas' Leases.
	Running  Answer     `json:"running"`
	LastSeen *time.Time `json:"lastSeen,omitempty"` // the last renewal of any replica's Lease
}

// PublishedStatus is what is published to clients.
type PublishedStatus struct {
	Endpoint string   `json:"endpoint"`
	CABundle CABundle `json:"caBundle"`
}

// CertificateStatus is a serving certificate.
type CertificateStatus struct {
	Source      Source    `json:"source"` // "secret", "endpoint" or "agent"
	SHA256      string    `json:"sha256"`
	DNSNames    []string  `json:"dnsNames,omitempty"`
	IPAddresses []string  `json:"ipAddresses,omitempty"`
	Issuer      string    `json:"issuer,omitempty"`
	NotBefore   time.Time `json:"notBefore"`
	NotAfter    time.Time `json:"notAfter"`
	SecondsLeft int64     `json:"secondsLeft"` // the time until it expires; negative if it has expired
}

// Renewer is the controller that writes the Secret and renews its certificate.
type Renewer struct {
	// Kind and Name identify the controller's object: a cert-manager Certificate, or another object.
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Issuer string `json:"issuer,omitempty"` // the cert-manager issuer with its kind, such as "ClusterIssuer my-ca"
	// RenewalTime is when cert-manager will renew the certificate, according to its status.
	RenewalTime *time.Time `json:"renewalTime,omitempty"`
	Trouble     string     `json:"trouble,omitempty"` // why cert-manager cannot renew
}

// CertManagerCertificate is the Kind of a Renewer for cert-manager.
const CertManagerCertificate = "Certificate"

// String names the object.
func (r *Renewer) String() string {
	if r.Kind == CertManagerCertificate {
		return fmt.Sprintf("it belongs to cert-manager's Certificate %q", r.Name)
	}
	return fmt.Sprintf("it belongs to %s %q", r.Kind, r.Name)
}

// ReplicaStatus is the number of replicas that serve the same certificate, as the agent reports it.
type ReplicaStatus struct {
	Total   int32 `json:"total"`
	Serving int32 `json:"serving"`
	// SHA256 is the fingerprint of the certificate that the Serving replicas present. It differs from that of the
	// configured certificate while that one is refused or missing.
	SHA256 string         `json:"sha256,omitempty"`
	Others []OtherReplica `json:"others,omitempty"` // the replicas that serve something else
}

// OtherReplica is a replica that does not serve the certificate.
type OtherReplica struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}
