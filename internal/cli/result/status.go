package result

import (
	"fmt"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Status is the certificate in front of the impersonation proxy: what is configured, reported and presented.
type Status struct {
	Head
	// CredentialIssuer is absent when the cluster could not be asked.
	CredentialIssuer string    `json:"credentialIssuer,omitempty"`
	At               time.Time `json:"at"`
	// Users says how the users of the endpoint fare, which is what matters most.
	Users Users `json:"users"`
	// InEffect is true when what is configured is what the agent reports and every address presents.
	InEffect bool `json:"inEffect"`
	// Problems say why it is not, the most telling one first. Each cause is there once.
	Problems []Problem `json:"problems,omitempty"`
	// Configured is absent when the cluster could not be asked.
	Configured *ConfiguredStatus `json:"configured,omitempty"`
	Agent      *AgentStatus      `json:"agent,omitempty"`
	Published  *PublishedStatus  `json:"published,omitempty"`
	// Transition is a change of the certificate that is under way.
	Transition *Transition `json:"transition,omitempty"`
	// Certificate is the configured one as far as it can be read, else the one that is presented.
	Certificate *CertificateStatus `json:"certificate,omitempty"`
	RenewedBy   *Renewer           `json:"renewedBy,omitempty"`
	Replicas    *ReplicaStatus     `json:"replicas,omitempty"`
	// Addresses are what each address of the endpoint presents right now.
	Addresses []Address `json:"addresses,omitempty"`
	// Clients are the revisions, the latest last, and whether their clients verify the certificate in service.
	Clients []ClientState `json:"clients,omitempty"`
	// Kubeconfigs are those with contexts that lead to the endpoint; the entries are these contexts.
	Kubeconfigs []File `json:"kubeconfigs,omitempty"`
	// NotKnown names what could not be found out, each with the reason.
	NotKnown []string `json:"notKnown,omitempty"`
}

// Users says how users fare at the endpoint right now.
type Users struct {
	State UsersState `json:"state"`
	// Since is when they began to be refused, where that is known.
	Since *time.Time `json:"since,omitempty"`
	// Until is when the first certificate that is presented now expires.
	Until *time.Time `json:"until,omitempty"`
	// Code is the reason in one word, where there is one: a code of the checks, or of a finding of the agent.
	Code string `json:"code,omitempty"`
	// Message is the sentence that the first line of the text shows.
	Message string `json:"message"`
	// Next are commands: what to type now.
	Next []string `json:"next,omitempty"`
}

// UsersState is how users fare.
type UsersState string

// The states.
const (
	UsersNotAffected UsersState = "notAffected"
	UsersSomeRefused UsersState = "someRefused" // at some addresses, by some names, or with some of the kubeconfigs
	UsersAllRefused  UsersState = "allRefused"  // or they get no answer
	UsersSwitchedOff UsersState = "switchedOff" // the impersonation proxy is not to run
	UsersNotKnown    UsersState = "notKnown"
)

// Enum lists the states.
func (UsersState) Enum() []string {
	return []string{
		string(UsersNotAffected), string(UsersSomeRefused), string(UsersAllRefused), string(UsersSwitchedOff),
		string(UsersNotKnown),
	}
}

// Problem is one thing that is wrong.
type Problem struct {
	// Code is a code of the checks, or of a finding of the agent; absent when there is none.
	Code    string `json:"code,omitempty"`
	Message string `json:"message"`
}

// ConfiguredStatus is what the spec of the CredentialIssuer says.
type ConfiguredStatus struct {
	// Mode and Verification are as they are in the spec.
	Mode string `json:"mode"`
	// Source is "secret" or "generated".
	Source       Source                         `json:"source"`
	Secret       *ObjectRef                     `json:"secret,omitempty"`
	Verification configv1alpha1.TLSVerification `json:"verification,omitempty"`
	// CABundle is that of the spec; absent when the Secret's or none is published.
	CABundle CABundle `json:"caBundle,omitzero"`
	// CABundleSource is the object that the agent takes the CA bundle from; absent when it takes it from none.
	CABundleSource   string `json:"caBundleSource,omitempty"`
	ExternalEndpoint string `json:"externalEndpoint,omitempty"`
	LoadBalancerIP   string `json:"loadBalancerIP,omitempty"`
}

// AgentStatus is what the agent says about the impersonation proxy; status and reason are as they are in the status of
// the CredentialIssuer.
type AgentStatus struct {
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Running says whether a replica of the agent lives, by the Leases that replicas renew.
	Running Answer `json:"running"`
	// LastSeen is the last sign of life of any replica.
	LastSeen *time.Time `json:"lastSeen,omitempty"`
}

// PublishedStatus is what is published to clients.
type PublishedStatus struct {
	Endpoint string   `json:"endpoint"`
	CABundle CABundle `json:"caBundle"`
}

// CertificateStatus is one serving certificate.
type CertificateStatus struct {
	// Source is "secret", "endpoint" or "agent": what it is from.
	Source      Source    `json:"source"`
	SHA256      string    `json:"sha256"`
	DNSNames    []string  `json:"dnsNames,omitempty"`
	IPAddresses []string  `json:"ipAddresses,omitempty"`
	Issuer      string    `json:"issuer,omitempty"`
	NotBefore   time.Time `json:"notBefore"`
	NotAfter    time.Time `json:"notAfter"`
	// SecondsLeft is negative when it has expired.
	SecondsLeft int64 `json:"secondsLeft"`
}

// Renewer is the controller that writes a Secret and renews the certificate in it.
type Renewer struct {
	// Kind and Name identify the controller's object: a Certificate of cert-manager, or an object of another
	// controller.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Issuer names the cert-manager issuer of the certificate, with its kind: "ClusterIssuer my-ca".
	Issuer string `json:"issuer,omitempty"`
	// RenewalTime is when cert-manager says that it will renew the certificate.
	RenewalTime *time.Time `json:"renewalTime,omitempty"`
	// Trouble is what keeps cert-manager from renewing.
	Trouble string `json:"trouble,omitempty"`
}

// CertManagerCertificate is the Kind of a Renewer that is cert-manager.
const CertManagerCertificate = "Certificate"

// String says which object it is.
func (r *Renewer) String() string {
	if r.Kind == CertManagerCertificate {
		return fmt.Sprintf("it is of cert-manager's Certificate %q", r.Name)
	}
	return fmt.Sprintf("it is of %s %q", r.Kind, r.Name)
}

// ReplicaStatus says how many replicas of the agent serve the same certificate, as the agent reports it.
type ReplicaStatus struct {
	Total   int32 `json:"total"`
	Serving int32 `json:"serving"`
	// SHA256 is the fingerprint of the certificate that the Serving replicas present. It differs from that of the
	// configured certificate while that one is refused or missing.
	SHA256 string `json:"sha256,omitempty"`
	// Others are the replicas that serve something else.
	Others []OtherReplica `json:"others,omitempty"`
}

// OtherReplica is a replica that does not serve the certificate.
type OtherReplica struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}
